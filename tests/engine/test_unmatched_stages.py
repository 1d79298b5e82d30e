"""A pipeline of a rank a stage whose sends name nobody, as gloo's: it is not known who waits for whom."""

from pathlib import Path

import pytest
from support.trace_builder import trace

from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage

STEPS = 14


def step(number: int, first_ms: float, second_ms: float) -> str:
    """One of 100 ms: four stages compute one after another, the third and the last for 10 ms, give or take 0.1.

    The last one tells the others the loss.
    """
    jitter = 100 * (number % 3 - 1)
    first, second, other = (int(1000 * of) + jitter for of in (first_ms, second_ms, 10.0))
    begin, lines = 0, [f"step {number}: {number * 100000}+100000"]
    for rank, took in enumerate((first, second, other - 2 * jitter, other)):
        at = number * 100000 + begin
        received = f"gloo:recv {number * 100000 + 10}+{max(begin - 10, 5)} :recv | " if rank else ""
        sent = f" | gloo:send {at + took + 20}+500 :send" if rank < 3 else ""
        over = (number + 1) * 100000 - 1000
        told = f" | gloo:broadcast@0#{number} {at + took + 600}+{over - at - took - 600}"
        lines.append(f"{rank} main | {received}aten::mm {at + 10}+{took}{sent}{told}")
        begin += took
    return "\n".join(lines)


def asked(folder: Path, first_ms: float, second_ms: float) -> TriageResult:
    return triage(trace(folder, "\n".join(step(number, first_ms, second_ms) for number in range(STEPS))))


@pytest.mark.slow
@pytest.mark.parametrize(("first_ms", "accused"), [(12, (1,)), (55, ())], ids=["it is the longest", "another is"])
def test_a_slow_stage_is_accused_unless_another_takes_longer_anyway(
    tmp_path: Path, first_ms: float, accused: tuple[int, ...]
) -> None:
    result = asked(tmp_path, first_ms, 22)
    assert tuple(rank for finding in result.findings for rank in finding.ranks) == accused
    if not accused:
        (uneven,) = result.findings
        assert (uneven.cause, uneven.seen_on, uneven.priced_by) == ("stage_imbalance", (0,), "excess")
