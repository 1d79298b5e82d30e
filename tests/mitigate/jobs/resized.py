"""One job twice: with even batches, and resized every few steps, with workers that fetch ahead."""

import json
import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kair_mitigate
from kair_mitigate import control, orders, restarts
from kair_mitigate.plans import Plan

SAMPLES, EPOCHS = 500, 3


def order(folder: Path, number: int, step: int) -> None:
    """A plan of random sizes, some of them 0, for the step after this one: it comes into force later."""
    drawn = random.Random(number)
    first, second = sorted(drawn.choices(range(25), k=2))
    plan = Plan(number, step + 1, (first, second - first, 24 - second))
    orders.write_plan(folder, plan, orders.read_key(folder))


def losses(folder: Path | None, workers: int) -> tuple[list[float], torch.Tensor, list[tuple[int, ...]]]:
    """(of the whole job per step, the weights at the end, the sizes that were in force)."""
    drawn = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 6, generator=drawn, dtype=torch.float64)
    rows = list(zip(inputs, inputs[:, :1].sin(), range(SAMPLES), strict=True))
    torch.manual_seed(2)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1)).double()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = kair_mitigate.loader(rows, 8, seed=3, num_workers=workers)
    trained = list[int]()
    told, sizes = [], []
    if folder is not None and dist.get_rank() == 0:
        order(folder, 1, 0)  # it is there before anything is fetched
    for _ in range(EPOCHS):
        for batch, wanted, number in loader:
            trained += number.tolist() * (loader.last.sizes[loader.rank] > 0)
            step = loader.step - 1
            if folder is not None and dist.get_rank() == 0 and step % 3 == 0:
                order(folder, step + 2, step)
            loss = torch.nn.functional.mse_loss(model(batch), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            share = loader.last
            of_all = loss.detach() * share.sizes[loader.rank] / share.samples
            dist.all_reduce(of_all)
            told.append(of_all.item())
            sizes.append(share.sizes)
    if folder is not None:
        (folder / f"numbers-{dist.get_rank()}.json").write_text(json.dumps(trained), encoding="ascii")
    return told, torch.cat([one.detach().flatten() for one in model.parameters()]), sizes


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    control.EVERY = 2
    folder = Path(sys.argv[1])
    orders.make_key(folder)
    even, weights, _ = losses(None, 0)
    os.environ[restarts.RUN_FOLDER] = str(folder)
    resized, others, sizes = losses(folder, 2)
    if dist.get_rank() == 0:
        found = {
            "steps": [len(even), len(resized)],
            "plans": len(set(sizes)),
            "loss": max(abs(a - b) for a, b in zip(even, resized, strict=True)),
            "weights": (weights - others).abs().max().item(),
        }
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
