"""A rank that a test shows in one class of its time and that loses more in another; ms by hand."""

from pathlib import Path

from support.trace_builder import trace

from kair_engine.triage.analysis import triage

COMPUTES, IDLE = (40, 44, 50, 60, 75, 95, 120, 150), (26, 28, 25, 27, 25, 28, 26, 27)
"""Of one of two ranks, longer than the other: steps resemble one another in the former, and tell less than they are."""


def step(number: int) -> str:
    """It does both in turn, and they meet."""
    begin, lines = number * 200_000, [f"step {number}: {number * 200_000}+200000"]
    for rank, (computes, idle) in enumerate(((1000 * COMPUTES[number], 1000 * IDLE[number]), (0, 0))):
        at, met = begin + 10_000 + computes + idle, begin + 198_000
        lines.append(f"{rank} main | aten::mm {begin}+{10_000 + computes} | aten::add {at}+100 | aten::mul {met}+2000")
        lines.append(f"{rank} th2 | gloo:all_reduce@dp#{number} {at + 100}+{met - at - 100}")
    return "\n".join(lines)


def test_it_is_told_and_priced_by_what_it_loses_most_in(tmp_path: Path) -> None:
    (finding,) = triage(trace(tmp_path, "\n".join(map(step, range(len(COMPUTES)))))).findings
    assert (finding.ranks, finding.cause, finding.operator) == ((0,), "compute", "aten::mm")
    assert finding.time_lost_us_per_step > 60_000
