"""Records these dumps: four processes with gloo, of which one stops or calls another collective, or none does.

`python record.py FOLDER healthy|hang|other|groups` writes FOLDER/rankN.json; `--pickle` as a last word writes pickles
as the watchdog does. Needs torch; where Kair is developed, `pip install -e .[record]` brings it.
"""

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

WORLD, STEPS, ODD = 4, 3, 2


def main() -> None:
    folder, fault, *form = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "worker", folder, fault]
    for worker in [subprocess.Popen([*command, str(rank), *form]) for rank in range(WORLD)]:
        worker.wait()


def worker(folder: str, fault: str, rank: int, *, pickled: bool) -> None:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="12507", TORCH_FR_BUFFER_SIZE="200")
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(seconds=30))
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    gradients, parts = torch.ones(1000), [torch.ones(10) for _ in range(WORLD)]
    for _ in range(STEPS):
        dist.all_reduce(gradients)
        dist.all_reduce(gradients, group=halves[rank // 2])
    odd = rank == ODD
    if fault == "other" and odd:
        dist.broadcast(torch.ones(10), 0, async_op=True)
    elif fault == "groups" and odd:
        # It waits nowhere; its partner waits for it, and the others for both.
        pass
    elif fault == "groups" and rank == ODD + 1:
        dist.all_reduce(gradients, group=halves[1], async_op=True)
    elif fault != "healthy" and not odd:
        dist.all_gather(parts, torch.ones(10), async_op=True)
    time.sleep(1.5)
    if pickled:
        content = c10d._dump_fr_trace(True, False, False)
        Path(folder, f"trace_rank_{rank}").write_bytes(content)
    else:
        Path(folder, f"rank{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    time.sleep(1)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2], sys.argv[3], int(sys.argv[4]), pickled="--pickle" in sys.argv)
    else:
        main()
