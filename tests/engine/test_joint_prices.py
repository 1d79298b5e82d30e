"""Culprits that hide one another are priced together, however many; each one's part is a range."""

from pathlib import Path

import pytest
from support.trace_builder import Row, build

from kair_engine.ranks import Rank
from kair_engine.results.triage import Finding
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage
from kair_engine.triage.look import Looked, look
from kair_engine.triage.pricing import Priced, priced
from kair_engine.triage.undoing import MOST_FINDINGS

STEPS, WORK, LONGER = 4, 100.0, 20.0


def job(folder: Path, ranks: int, longer: dict[int, float]) -> Trace:
    """Ranks compute 100 µs and some longer, then all meet in a transfer of 10 µs: a step ends for whoever is last."""
    rows, spans = [], {}
    step_us = WORK + max(longer.values()) + 10
    for step in range(STEPS):
        begin = step_us * step
        for rank in range(ranks):
            took = WORK + longer.get(rank, 0.0)
            rows.append(Row(rank, "gpu7", "gemm", begin, took, step))
            rows.append(Row(rank, "gpu7", "allreduce", begin + took, step_us - took, step, group="dp", seq=step))
            spans[rank, step] = (begin, step_us)
    return build(folder, rows, spans)


def accused(rank: int, excess_us: float) -> Finding:
    """A finding before it is priced: with its excess."""
    return Finding(
        cause="compute",
        pattern="persistent",
        ranks=(Rank(rank),),
        hosts=(),
        operator=None,
        edge=None,
        steps=tuple(range(STEPS)),
        p_value=1e-6,
        time_lost_us_per_step=excess_us,
        slowdown=1.1,
        evidence=(),
    )


def prices(seen: Looked, *findings: Finding) -> Priced:
    return priced(seen.trace, seen.replays, findings, seen.found, step_time_ns=seen.step_time_ns)


def test_of_two_that_are_as_late_either_alone_saves_nothing_and_both_save_all(tmp_path: Path) -> None:
    seen = look(job(tmp_path, 8, {1: LONGER, 6: LONGER}))
    both = prices(seen, accused(1, LONGER), accused(6, LONGER))
    assert both.accused_together is not None
    assert both.accused_together.saved_us == pytest.approx(LONGER)
    for one in both.findings:
        assert one.time_lost_us_per_step == one.least_us_per_step == pytest.approx(0, abs=1e-6)
        assert one.most_us_per_step == pytest.approx(LONGER)


def test_the_later_of_two_saves_what_it_is_later_by_at_least(tmp_path: Path) -> None:
    """Rank 1 is 20 µs late and rank 6 is 5 µs late: fixed first rank 1 saves 15 µs, fixed last 20 µs."""
    seen = look(job(tmp_path, 8, {1: LONGER, 6: 5.0}))
    both = prices(seen, accused(1, LONGER), accused(6, 5.0))
    assert both.accused_together is not None
    assert both.accused_together.saved_us == pytest.approx(LONGER)
    parts = {one.ranks[0]: (one.least_us_per_step, one.most_us_per_step) for one in both.findings}
    assert parts == {1: pytest.approx((15.0, 20.0)), 6: pytest.approx((0.0, 5.0), abs=1e-6)}


def test_one_alone_has_no_part(tmp_path: Path) -> None:
    seen = look(job(tmp_path, 8, {1: LONGER}))
    alone = prices(seen, accused(1, LONGER))
    assert alone.accused_together is None
    assert alone.findings[0].least_us_per_step is None
    assert alone.findings[0].time_lost_us_per_step == pytest.approx(LONGER)


def test_more_than_are_replayed_one_by_one_have_the_price_of_all(tmp_path: Path) -> None:
    """20 of 64 are as late: the price of 16 would be nothing, as the other four are late as well."""
    slow = range(0, 40, 2)
    seen = look(job(tmp_path, 64, dict.fromkeys(slow, LONGER)))
    every = prices(seen, *(accused(rank, LONGER) for rank in slow))
    assert len(slow) > MOST_FINDINGS
    assert every.accused_together is not None
    assert every.accused_together.saved_us == pytest.approx(LONGER)
    assert len(every.findings) == len(slow)
    for one in every.findings:
        assert one.time_lost_us_per_step == pytest.approx(0, abs=1e-6), "alone each saves nothing, replayed or not"
        assert one.fix, "what undoes it is known"
    parts = [one for one in every.findings if one.most_us_per_step is not None]
    assert len(parts) == MOST_FINDINGS
    assert all(one.most_us_per_step == pytest.approx(LONGER) for one in parts)


def test_no_part_is_more_than_all(tmp_path: Path) -> None:
    late = {1: 12.0, 2: 7.0, 6: LONGER}
    seen = look(job(tmp_path, 8, late))
    every = prices(seen, *(accused(rank, us) for rank, us in late.items()))
    assert every.accused_together is not None
    for one in every.findings:
        assert one.least_us_per_step is not None
        assert one.most_us_per_step is not None
        assert 0 <= one.least_us_per_step <= one.most_us_per_step <= every.accused_together.saved_us + 1e-6


def test_an_estimate_of_the_median_rank_is_no_second_finding_where_half_are_accused(tmp_path: Path) -> None:
    """Of two ranks the median is half of the culprit's: it would be found twice."""
    seen = look(job(tmp_path, 2, {1: LONGER}))
    culprit = accused(1, LONGER)
    all_ranks = Finding(
        **vars(culprit)
        | {
            "cause": "launch_bound",
            "pattern": "job_wide",
            "ranks": (),
            "seen_on": (Rank(0), Rank(1)),
            "time_lost_us_per_step": LONGER / 2,
        }
    )
    host = Finding(**vars(culprit) | {"cause": "host"})
    assert [one.cause for one in prices(seen, host, all_ranks).findings] == ["host"]
    assert {one.cause for one in prices(seen, culprit, all_ranks).findings} == {"compute", "launch_bound"}


def test_triage_tells_the_joint_price(tmp_path: Path) -> None:
    result = triage(job(tmp_path, 8, {1: LONGER, 6: LONGER}))
    assert {one.ranks for one in result.findings} == {(1,), (6,)}
    assert result.accused_together is not None
    assert result.accused_together == result.together
    assert result.accused_together.saved_us == pytest.approx(LONGER)
