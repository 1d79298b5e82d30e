"""Steps of recordings that mark none: told by optimizers, zeroed gradients, fetched batches, or what repeats."""

import random

import numpy as np
import pytest

from kair_engine.readers.kineto.steps.repeating import repeating
from kair_engine.readers.kineto.steps.signs import StepSigns

EXTENT = (0, 4_000)


def steps(*seen: tuple[str, int, int]) -> list[tuple[int, int]] | None:
    signs = StepSigns()
    for name, start, end in seen:
        signs.see(name, start, end, track=0)
    found = signs.steps(EXTENT)
    return None if found is None else list(zip(found.begin.tolist(), found.end.tolist(), strict=True))


def every(name: str, first: int, period: int = 1_000, count: int = 4) -> list[tuple[str, int, int]]:
    return [(name, first + at * period, first + at * period + 50) for at in range(count)]


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        # A step ends with the optimizer's: what comes before the first is one, too.
        (every("Optimizer.step#AdamW.step", 900), [(0, 950), (950, 1950), (1950, 2950), (2950, 3950)]),
        # A recording that began long before it is none of them.
        (every("Optimizer.step#SGD.step", 2500, 500, 3), [(2550, 3050), (3050, 3550)]),
        (every("Optimizer.zero_grad#SGD.zero_grad", 10), [(10, 1010), (1010, 2010), (2010, 3010), (3010, 4000)]),
        (every("enumerate(DataLoader)#_Iter.__next__", 0), [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000)]),
        # Of a step's two batches none begins one where the optimizer tells.
        (
            every("enumerate(DataLoader)#a", 0, 500, 8) + every("Optimizer.step#SGD.step", 900),
            [(0, 950), (950, 1950), (1950, 2950), (2950, 3950)],
        ),
        (
            every("Optimizer.step#D.step", 400, 500, 8) + every("Optimizer.step#G.step", 900),
            [(0, 950), (950, 1950), (1950, 2950), (2950, 3950)],
        ),
        (every("aten::mm", 0), None),
        (every("Optimizer.step#SGD.step", 900, 1000, 2), None),
    ],
)
def test_steps_lie_between_signs(seen: list[tuple[str, int, int]], found: list[tuple[int, int]] | None) -> None:
    assert steps(*seen) == found


LAYERS = ["attention", "norm", "mlp"] * 4
STEP = ["embed", *LAYERS, "loss", *(f"grad_{name}" for name in reversed(LAYERS)), "update"]
WARM_UP = [f"init{number}" for number in range(9)]


@pytest.mark.parametrize(
    ("ran", "begins_with", "count"),
    [
        (STEP * 6, "embed", 6),
        # Recordings that begin in the middle of a step find the same operator.
        (STEP[7:] + STEP * 5 + STEP[:9], "embed", 6),
        (WARM_UP + STEP * 6, "embed", 6),
        # Twelve layers in one pass are no steps, nor is what happens to run four times.
        (STEP, None, 0),
        (WARM_UP * 3 + STEP, None, 0),
        (STEP * 3, None, 0),
        ([f"op{random.Random(number).randrange(40)}" for number in range(300)], None, 0),
    ],
)
def test_steps_are_a_sequence_that_repeats(ran: list[str], begins_with: str | None, count: int) -> None:
    texts = sorted(set(ran))
    name = np.array([texts.index(one) for one in ran])
    found = repeating(name, 10 * np.arange(len(ran)), texts)
    assert (found and found[0], 0 if found is None else len(found[1])) == (begins_with, count)
