"""Where a rank's thread is idle tells why: whole recordings by hand."""

from pathlib import Path

import pytest
from support.trace_builder import trace

from kair_engine.triage.analysis import triage

STEPS = 10


def fetching(step: int, rank: int) -> str:
    """It computes after its optimizer's last step and its batch, and all meet; one fetches that for 40 ms."""
    begin = step * 100_000
    drawn = begin + (40_000 if rank == 2 else 1000) + 100 * ((step + rank) % 3)
    met = begin + 75_000
    return (
        f"{rank} main | aten::randint {drawn}+500 /forward | aten::addmm {drawn + 600}+20000 /forward"
        f" | aten::add_ {met + 2000}+20000 /optimizer\n"
        f"{rank} th2 | gloo:all_reduce@dp#{step} {drawn + 20_700}+{met - drawn - 20_700}"
    )


def test_a_batch_that_a_loop_fetches_by_itself_is_input_and_priced(tmp_path: Path) -> None:
    lines = [
        line
        for step in range(STEPS)
        for line in (f"step {step}: {step * 100_000}+100000", *(fetching(step, rank) for rank in range(4)))
    ]
    (finding,) = triage(trace(tmp_path, "\n".join(lines))).findings
    assert (finding.cause, finding.ranks) == ("unmarked_input", (2,))
    shown = next(one.figures for one in finding.evidence if one.kind == "unmarked_input")
    assert shown == pytest.approx({"idle_us_per_step": 40_100, "peers_us_per_step": 1100}, abs=150)
    assert (finding.priced_by, round(finding.time_lost_us_per_step, -3)) == ("replay", 39_000)


def stage(step: int, rank: int) -> str:
    """Three stages of a rank each: one hands on to the next, and then all meet. The middle one is idle for 40 ms."""
    begin = step * 70_000
    works = begin + (1000, 46_600, 56_600)[rank]
    meets = {0: [("a", 9100)], 1: [("a", 500), ("b", 54_700)], 2: [("b", 500)]}[rank]
    over = {"a": 9500, "b": 55_000, "all": 66_000}
    meets.append(("all", works + 8200 - begin))
    calls = [f"c10d::allreduce_ {begin + at - 50}+40 :host /forward" for _, at in meets]
    took = [f"gloo:all_reduce@{group}#{step} {begin + at}+{over[group] - at}" for group, at in meets]
    main = [*calls, f"aten::linear {works}+8000 /forward", f"aten::add_ {begin + 66_500}+3500 /optimizer"]
    return f"{rank} main | {' | '.join(main)}\n{rank} th2 | {' | '.join(took)}"
