"""Steps that some ranks leave early, drawn by rank and step, with workers that fetch ahead; the loop of the docs."""

import json
import random
import sys
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kair_mitigate
from kair_mitigate import deadline
from kair_mitigate.plans import Plan, State

SAMPLES, EPOCHS, BATCHES, RATE = 100, 2, 4, 0.05


def network() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1)).double()


def flat(of: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in of])


def samples_of_all(mine: list[int]) -> list[int]:
    told: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return list(chain.from_iterable(told))


class Run:
    """One job to the end of its epochs, and what is found wrong with it."""

    def __init__(self, workers: int, plan: Plan) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 6, generator=drawn, dtype=torch.float64)
        self.wanted = self.inputs[:, :1].sin()
        self.model, self.alone, self.workers = DistributedDataParallel(network()), network(), workers
        self.gradient = self.rate = 0.0
        self.steps = self.short = 0
        self.batches, self.trained = list[int](), list[int]()
        self.begin(State(3, 0, 0, 0, plan).as_json())

    def begin(self, state: dict[str, object]) -> None:
        """As a job does that is started anew from a checkpoint."""
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        options = {"accumulate": BATCHES, "uneven_accumulation": True, "num_workers": self.workers}
        rows = list(zip(self.inputs, self.wanted, range(SAMPLES), strict=True))
        self.loader = kair_mitigate.loader(rows, 8, seed=3, optimizer=self.optimizer, **options)
        self.loader.load_state_dict(json.loads(json.dumps(state)))

    def epoch(self) -> None:
        """To its end, or to a checkpoint from which the job goes on."""
        loader, mine, batches = self.loader, list[int](), 0
        for batch, label, number in loader:
            # A batch in which a rank has none of its samples has two others, which do not count.
            mine += number.tolist() * (loader.counted > 0)
            batches += 1
            with loader.accumulating(self.model):
                (torch.nn.functional.mse_loss(self.model(batch), label) / BATCHES).backward()
            if loader.is_last_of_step:
                self.step(samples_of_all(mine), loader.last.samples)
                self.batches.append(batches)
                mine, batches = [], 0
                if self.steps % 5 == 0 and loader.step % 2:
                    self.begin(loader.state_dict())
                    return

    def step(self, done: list[int], samples: int) -> None:
        """The optimizer's, compared with what one process finds of the samples that were done."""
        self.alone.load_state_dict(self.model.module.state_dict())
        loss = torch.nn.functional.mse_loss(self.alone(self.inputs[done]), self.wanted[done])
        exact = flat(list(torch.autograd.grad(loss, list(self.alone.parameters()))))  # which nothing weighs
        gradient, before = flat([one.grad for one in self.model.parameters()]), flat(list(self.model.parameters()))
        self.optimizer.step()
        self.optimizer.zero_grad()
        share = len(done) / samples
        moved = before - flat(list(self.model.parameters()))
        expected = RATE * (share if share < deadline.FEWER else 1) * gradient
        self.gradient = max(self.gradient, (gradient - exact).abs().max().item())
        self.rate = max(self.rate, (moved - expected).abs().max().item())
        self.steps, self.short = self.steps + 1, self.short + (share < 1)
        self.trained += done


def trained(workers: int, plan: Plan) -> dict[str, object]:
    run = Run(workers, plan)
    while run.loader.epoch < EPOCHS:
        run.epoch()
    return {
        "gradient": run.gradient,
        "rate": run.rate,
        "rate_after": run.optimizer.param_groups[0]["lr"],
        "short": run.short,
        "batches": run.batches,
        "exactly_once": sorted(run.trained) == sorted([*range(SAMPLES)] * EPOCHS),
    }


def leaves_off(self: object, at: int, _: int) -> bool:
    """Drawn: rank 1 often does a part only, the others now and then."""
    if at == 0:
        self.drawn = random.Random(f"{dist.get_rank()} {getattr(self, 'steps', 0)}")
        self.steps = getattr(self, "steps", 0) + 1
        self.most = self.drawn.choice((0, 1, 2, 9)) if dist.get_rank() == 1 else self.drawn.choice((1, 9, 9, 9))
    return at >= self.most


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    deadline.Pace.is_last = leaves_off
    late = Plan(0, 0, (9, 5, 10), deadline_us=1000)
    found = {f"{workers} workers": trained(workers, late) for workers in (0, 2)}
    found["batches by plan"] = trained(0, Plan(0, 0, (12, 4, 8), batches=(2, 1, 6)))
    every: list[object] = [None] * 3
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(every), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
