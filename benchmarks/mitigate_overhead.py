"""What the loader of `kair mitigate` costs a step: beside PyTorch's own, in one job, in turns.

    python benchmarks/mitigate_overhead.py [--ranks 4]

Ranks train a small model with DDP over gloo; blocks of steps by either loader take turns, so that the machine's load
falls on both. Of the mean step: wall time, and CPU time of the process, without the slowest tenth of steps and with it.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

BLOCKS, STEPS, BATCH = 22, 48, 16


def rank(folder: Path) -> None:
    """One rank of the job."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    import kair_mitigate

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = [(torch.randn(256), torch.randn(1)) for _ in range(STEPS * BATCH * dist.get_world_size())]
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plain = DataLoader(rows, BATCH, sampler=DistributedSampler(rows))
    ours = kair_mitigate.loader(rows, BATCH)
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "kair": []}
    for block in range(BLOCKS):
        name = ("plain", "kair")[block % 2]
        begun = time.perf_counter(), time.process_time()
        for inputs, wanted in plain if name == "plain" else ours:
            torch.nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
            optimizer.zero_grad()
            if block > 1:
                times[name].append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
            begun = time.perf_counter(), time.process_time()
    if dist.get_rank() == 0:
        (folder / "times.json").write_text(json.dumps(times), encoding="ascii")
    dist.destroy_process_group()


def main() -> int:
    """Run the job, and print what a step took; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank(Path(os.environ["KAIR_MITIGATE_RUN"]))
        return 0
    from kair_mitigate import orders

    with tempfile.TemporaryDirectory() as folder, closing(socket.socket()) as held:
        orders.make_key(Path(folder))
        held.bind(("127.0.0.1", 0))
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}
        held.close()
        shared |= {"WORLD_SIZE": str(options.ranks), "KAIR_MITIGATE_RUN": folder, "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen([sys.executable, __file__], env={**shared, "RANK": str(number)})
            for number in range(options.ranks)
        ]
        if sum([abs(process.wait()) for process in started]):
            return 1
        times = json.loads((Path(folder) / "times.json").read_text(encoding="ascii"))
    print(f"{options.ranks} ranks, rank 0's step: DataLoader's, kair's, and the difference")
    for clock, what in enumerate(("wall", "CPU")):
        of = {name: sorted(one[clock] * 1e3 for one in each) for name, each in times.items()}
        for share, steps in ((0.9, "without the slowest tenth"), (1.0, "all steps")):
            plain, ours = (statistics.mean(one[: int(share * len(one))]) for one in (of["plain"], of["kair"]))
            print(f"{what}, {steps}: {plain:.2f} ms, {ours:.2f} ms, {ours - plain:+.2f} ms ({ours / plain - 1:+.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
