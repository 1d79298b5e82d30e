"""Samples that ranks claim while a step runs, at paces drawn by rank and step; also where the store fails on a rank."""

import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from deadline import EPOCHS, SAMPLES, Run

from kair_mitigate.claiming import Claims
from kair_mitigate.plans import Plan

SLOWEST_S = 0.004
"""Of a sample, on a rank in a spell."""
EVEN = Plan(0, 0, (6, 6, 6, 6), claims=True)


class Claimed(Run):
    """A job whose ranks claim, each now fast and now slow."""

    def __init__(self, workers: int, plan: Plan) -> None:
        super().__init__(workers, plan)
        self.paces = random.Random(dist.get_rank())
        self.model.register_forward_pre_hook(self.wait)

    def wait(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if self.paces.random() < 0.1:
            self.pace = self.paces.choice((0.0, 0.0, 0.2, 1.0))
        time.sleep(SLOWEST_S * getattr(self, "pace", 0.0) * len(inputs[0]))


def trained(workers: int, plan: Plan) -> dict[str, object]:
    run = Claimed(workers, plan)
    while run.loader.epoch < EPOCHS:
        run.epoch()
    store = dist.distributed_c10d._get_default_store()
    claims = run.loader._claims
    return {
        "gradient": run.gradient,
        "steps": run.steps,
        "short": run.short,
        "batches": run.batches,
        "claims": claims is not None,
        "keys": [] if claims is None else [one for one in range(99) if store.check([f"{claims._name}/{one}"])],
        "exactly_once": sorted(run.trained) == sorted([*range(SAMPLES)] * EPOCHS),
    }


class Failing:
    """A store that is gone for some ranks from a claim on."""

    def __init__(self, store: dist.Store, ranks: tuple[int, ...], claim: int) -> None:
        self.store, self.claims_left = store, claim if dist.get_rank() in ranks else 1 << 32

    def add(self, key: str, count: int) -> int:
        self.claims_left -= 1
        if self.claims_left < 0:
            raise RuntimeError("the store is gone")
        return self.store.add(key, count)

    def delete_key(self, key: str) -> bool:
        return self.store.delete_key(key)


def failing(ranks: tuple[int, ...], claim: int) -> dict[str, object]:
    make = Claims.of_job

    def made(*of_job: object) -> Claims | None:
        claims = make(*of_job)
        claims._store = Failing(claims._store, ranks, claim)
        return claims

    Claims.of_job = made
    found = trained(1, EVEN)
    Claims.of_job = make
    return found


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {f"{workers} workers": trained(workers, EVEN) for workers in (0, 1, 2)}
    found["no store on rank 2"] = failing((2,), 2)
    found["no store"] = failing((0, 1, 2, 3), 0)
    every: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(every), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
