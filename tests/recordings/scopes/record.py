"""Records the folders `steps` and `scopes` beside it: what capture keeps of every step of a real job.

Four ranks, of which rank 1 needs 6 ms instead of 3 for its scope `augment` from step 100 on.

    python tests/recordings/scopes/record.py
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
STEPS, SLOW_RANK, FROM_STEP = 240, 1, 100


def train() -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import kair_capture as kair

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(STEPS):
        with kair.scope("augment"):
            time.sleep(0.006 if dist.get_rank() == SLOW_RANK and step >= FROM_STEP else 0.003)
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def main() -> None:
    """Runs it beside a coordinator, and keeps two folders of its job."""
    sys.path.insert(0, str(HERE.parents[2] / "benchmarks" / "capture"))
    from fault import watched

    from kair_capture.coordinator.step_log import read_all, write_part

    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "4"]
    with tempfile.TemporaryDirectory(prefix="kair-record-") as folder:
        places = watched([*torchrun, __file__, "train"], Path(folder))
        for name in ("steps", "scopes"):
            shutil.rmtree(HERE / name, ignore_errors=True)
            (HERE / name).mkdir()
        write_part(HERE / "steps" / "part-00000001.parquet", read_all(places.steps))
        for at, path in enumerate(sorted(places.scopes.glob("*.parquet"))):
            shutil.copy(path, HERE / "scopes" / f"host-{at}.parquet")


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
