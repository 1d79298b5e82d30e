"""A rank of a job of two (gloo) that is told to delay itself in some steps, as an agent would.

    python delayed_job.py FOLDER ORDER|-

Leaves its losses, bit by bit, and how often it slept in `FOLDER/seen-RANK.json`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import _global_optimizer_pre_hooks

STEPS = 130
TOLD_IN = 80


def main(folder: Path, order: str) -> None:
    """Trains for some steps."""
    slept = 0
    sleep = time.sleep

    def counted(seconds: float) -> None:
        nonlocal slept
        slept += 1
        sleep(seconds)

    time.sleep = counted
    import kair_capture as kair
    from kair_capture.job.windows import ControlWords

    kair.start(job="delayed")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for step in range(STEPS):
        if step == TOLD_IN and order != "-":
            tell(folder, rank, order, ControlWords)
        with torch.no_grad():
            model.module(torch.ones(4, 16))  # an evaluation before each step is not what is delayed
        sleep(0.01)
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    dist.destroy_process_group()
    hooks = len(_global_optimizer_pre_hooks)
    (folder / f"seen-{rank}.json").write_text(json.dumps({"losses": losses, "slept": slept, "hooks": hooks}))


def tell(folder: Path, rank: int, order: str, words_of: Any) -> None:  # noqa: ANN401
    """What an agent does."""
    run_dir = Path(os.environ["KAIR_RUN_DIR"])
    whole = folder / f"order-{rank}"
    whole.write_text(order)
    whole.replace(run_dir / "delays.json")
    words = words_of(run_dir / f"rank-{rank}.control")
    words.tell_delays(json.loads(order)["generation"])
    words.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
