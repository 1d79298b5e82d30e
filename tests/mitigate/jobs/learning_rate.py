"""A job whose global batch changes by plans: what rate each optimizer step took, and what the job sees of it."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kair_mitigate
from kair_mitigate import control, orders, restarts
from kair_mitigate.plans import Plan

SAMPLES, RATE = 1000, 0.08
PLANS = {
    5: ((8, 4), "linear"),
    15: ((4, 0), "sqrt"),
    25: ((8, 8), "linear"),
    35: ((8, 4), "keep"),
}
"""The step in which each is ordered; the job's own batch is 16."""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    control.EVERY = 2
    folder = Path(sys.argv[1])
    orders.make_key(folder)
    os.environ[restarts.RUN_FOLDER] = str(folder)
    inputs = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = list(zip(inputs, inputs[:, :1].sin(), strict=True))
    model = DistributedDataParallel(torch.nn.Linear(6, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.9)
    loader = kair_mitigate.loader(rows, 8, seed=3, optimizer=optimizer)
    steps, state = list[dict[str, object]](), None
    while loader.step < 45:
        for batch, wanted in loader:
            step = loader.step - 1
            if step in PLANS and dist.get_rank() == 0:
                sizes, rule = PLANS[step]
                plan = Plan(step, step + 1, sizes, learning_rate=rule)
                orders.write_plan(folder, plan, orders.read_key(folder))
            torch.nn.functional.mse_loss(model(batch), wanted).backward()
            before, gradient = model.module.weight.detach().clone(), model.module.weight.grad.clone()
            own = optimizer.param_groups[0]["lr"]
            optimizer.step()
            moved = (before - model.module.weight.detach()).norm() / gradient.norm()
            after = optimizer.param_groups[0]["lr"]
            optimizer.zero_grad()
            schedule.step()
            steps.append({"samples": loader.last.samples, "took": moved.item(), "own": own, "after": after})
            if step == 20:  # as a job that is started anew from its checkpoint
                state = loader.state_dict(), optimizer.state_dict(), schedule.state_dict()
            if step in {20, 44}:
                break
        if state is not None:
            data, of_optimizer, of_schedule = json.loads(json.dumps(state[0])), state[1], state[2]
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.9)
            optimizer.load_state_dict(of_optimizer)
            schedule.load_state_dict(of_schedule)
            loader, state = kair_mitigate.loader(rows, 8, seed=3, optimizer=optimizer), None
            loader.load_state_dict(data)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(steps), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
