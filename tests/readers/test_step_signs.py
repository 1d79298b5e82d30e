"""Steps that nothing numbers: told by ranges that span iterations, by optimizers and batches, or by what repeats."""

import random

import numpy as np
import pytest

from kair_engine.readers.step_marks import Mark, between_optimizers, marked_steps, repetition

EXTENT = (0, 4_000)
WORK = np.arange(10, 4_000, 100)
"""Something is launched every 100 ns."""


def every(name: str, first: int, period: int = 1_000, count: int = 4, length: int = 50) -> list[Mark]:
    return [Mark(name, first + at * period, first + at * period + length) for at in range(count)]


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        # A step ends with the optimizer's: what comes before the first is one, too, where it holds as much.
        (every("Optimizer.step#AdamW.step", 950), [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000)]),
        (every("Optimizer.step#AdamW.step", 750, 1000), [(800, 1800), (1800, 2800), (2800, 3800)]),
        # A recording that began long before it is none of them.
        (every("Optimizer.step#SGD.step", 2500, 500, 3), [(2550, 3050), (3050, 3550)]),
        (every("Optimizer.zero_grad#SGD.zero_grad", 0), [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4001)]),
        (every("Optimizer.zero_grad#SGD.zero_grad", 300), [(300, 1300), (1300, 2300), (2300, 3300)]),
        (every("enumerate(DataLoader)#_Iter.__next__", 0), [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4001)]),
        # Of a step's two batches none begins one where the optimizer tells.
        (
            every("enumerate(DataLoader)#a", 0, 500, 8) + every("Optimizer.step#SGD.step", 950),
            [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000)],
        ),
        (
            every("Optimizer.step#D.step", 450, 500, 8) + every("Optimizer.step#G.step", 950),
            [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000)],
        ),
        (every("aten::mm", 0), None),
        (every("Optimizer.step#SGD.step", 900, 1000, 2), None),
    ],
)
def test_steps_lie_between_optimizers(seen: list[Mark], found: list[tuple[int, int]] | None) -> None:
    steps = between_optimizers(seen, WORK, EXTENT)
    assert (None if steps is None else list(zip(steps.begin.tolist(), steps.end.tolist(), strict=True))) == found


def layers(count: int) -> list[Mark]:
    return [
        Mark(f"layer_{at}", first + 100 * at, first + 100 * at + 90)
        for first in range(0, 4000, 1000)
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("seen", "numbers", "told_by"),
    [
        ([Mark(f"step {at + 7}", at * 1000, at * 1000 + 900) for at in range(4)], [7, 8, 9, 10], None),
        (every("train_step", 0, length=900), [0, 1, 2, 3], "train_step"),
        (every("execute_context_0(0)_generation_8(8)", 0, length=900), [0, 1, 2, 3], "execute_context_"),
        # The outermost of those that span it, whatever else is in an iteration.
        (
            every("forward pass", 10, length=850) + every("model", 0, length=900) + every("norm", 30, 100, 40, 20),
            [0, 1, 2, 3],
            "model",
        ),
        # What is counted from the start in each iteration is a part of it.
        (layers(9), [0, 1, 2, 3], "layer_"),
        # None spans an iteration; what is of the optimizer, a collective or a batch never does.
        (every("forward", 0, length=300), None, None),
        (every("Optimizer.step#SGD.step", 0, length=900), None, None),
        (every("nccl:all_reduce", 0, length=900), None, None),
        (every("enumerate(DataLoader)#a", 0, length=900), None, None),
        (every("model", 0, 1500, 2, 1400), None, None),
    ],
)
def test_a_range_that_spans_each_iteration_tells_the_steps(
    seen: list[Mark], numbers: list[int] | None, told_by: str | None
) -> None:
    steps = marked_steps(seen, WORK)
    assert (None if steps is None else steps.number.tolist()) == numbers
    assert (None if steps is None else steps.inferred_from) == told_by
    if steps is not None and told_by is not None:
        assert steps.begin.tolist() == [0, 1000, 2000, 3000]
        # What runs between two is of the one before.
        assert steps.end[:-1].tolist() == [1000, 2000, 3000]


LAYERS = ["attention", "norm", "mlp"] * 4
STEP = ["embed", *LAYERS, "loss", *(f"grad_{name}" for name in reversed(LAYERS)), "update"]
WARM_UP = [f"init{number}" for number in range(9)]
REDUCED = [*["gemm", "all_reduce"] * 10, "adam"]
DECODED = ["embed", *["norm", "qkv", "rope", "attention", "mlp", "all_reduce"] * 48, "norm", "argmax"]


@pytest.mark.parametrize(
    ("ran", "told_by", "count"),
    [
        (STEP * 6, "what repeats from embed on", 6),
        # Recordings that begin in the middle of a step are cut at the same operation.
        (STEP[7:] + STEP * 5 + STEP[:9], "what repeats from embed on", 5),
        (WARM_UP + STEP * 6, "what repeats from embed on", 6),
        # A step holds everything that recurs.
        (REDUCED * 12, "what repeats up to adam", 12),
        (REDUCED[5:] + REDUCED * 10 + REDUCED[:8], "what repeats up to adam", 10),
        (["gemm", "all_reduce", "adam"] * 12, "what repeats up to adam", 12),
        (["gemm", "all_reduce"] * 12, "what repeats up to all_reduce", 12),
        (DECODED * 16, "what repeats up to argmax", 16),
        (DECODED[100:] + DECODED * 14 + DECODED[:200], "what repeats up to argmax", 14),
        # An optimizer works once a step, be it kernel after kernel, and whatever a loop does every few steps.
        ((REDUCED * 3 + ["log"]) * 4, "what repeats up to adam", 12),
        (["gemm", "all_reduce", "norm", "adam", "adam", "adam"] * 12, "what repeats up to adam", 12),
        (REDUCED * 3, "what repeats up to adam", 3),
        # Some more of them, an evaluation and an operation that another step lacks change nothing.
        (STEP * 2 + ["extra"] + STEP * 3 + ["eval"] * 20 + STEP * 4 + STEP[:9], "what repeats from embed on", 9),
        # Twelve layers in one pass are no steps, nor is what happens to run four times.
        (STEP, None, 0),
        (WARM_UP * 3 + STEP, None, 0),
        (STEP * 2, None, 0),
        (["gemm"] * 40, None, 0),
        ([f"op{random.Random(number).randrange(40)}" for number in range(300)], None, 0),
    ],
)
def test_steps_are_a_sequence_that_repeats(ran: list[str], told_by: str | None, count: int) -> None:
    texts = sorted(set(ran))
    found = repetition(np.array([texts.index(one) for one in ran]), texts)
    assert (None if found is None else found.inferred_from, 0 if found is None else found.steps) == (told_by, count)
