"""What several accused cost: all of them together first, then each one's part as a range, wherever it is shown."""

from dataclasses import fields, replace
from typing import Any

import pytest
from support.cli_samples import triage
from support.evidence_made import evidence_of

from kair_engine.ranks import Rank
from kair_engine.results.evidence_kinds import ShownBy
from kair_engine.results.triage import Finding, RankedRank, TriageResult
from kair_engine.results.whatif import Fix, FixPrice
from kair_tui.render.joint_prices import between, fixed_first
from kair_tui.render.oneline import oneline
from kair_tui.render.triage import facts, gain_in_words, triage_in_words
from kair_tui.render.units import ranks_named
from kair_tui.render.verdict import costs, summary

STEP_US = 36_300.0
BOTH = FixPrice("both", 30_800.0, 5_500.0, 5_500 / STEP_US, 5_500 / 30_800, 29.1)


def culprit(rank: int, first_us: float, last_us: float, **changed: Any) -> Finding:  # noqa: ANN401
    """A finding about one rank: fixed first it saves the one, fixed last the other."""
    gain = first_us / (STEP_US - first_us)
    told = vars(triage("mlp").findings[0]) | {
        "ranks": (Rank(rank),),
        "operator": None,
        "evidence": (),
        "time_lost_us_per_step": first_us,
        "slowdown": 1 + gain,
        "throughput_gain": gain,
        "gpu_hours_per_day": 0.4,
        "priced_by": "replay",
        "fix": (Fix(ranks=(Rank(rank),), kinds=("compute",)),),
        "least_us_per_step": min(first_us, last_us),
        "most_us_per_step": max(first_us, last_us),
    }
    return Finding(**{field.name: (told | changed)[field.name] for field in fields(Finding)})


def found(*findings: Finding, **changed: Any) -> TriageResult:  # noqa: ANN401
    ranking = tuple(RankedRank(Rank(rank), None, "all", 0.0, False, 0.0, 0.0) for rank in range(8))
    told = vars(triage("mlp")) | {"verdict": "straggler", "findings": findings, "warnings": (), "ranking": ranking}
    told |= {"step_time_us": STEP_US, "together": BOTH, "accused_together": BOTH} | changed
    return TriageResult(**{field.name: told[field.name] for field in fields(TriageResult)})


HIDDEN = (culprit(6, 82.0, 5_440.0), culprit(1, 67.5, 5_425.0))


def test_two_that_hide_each_other_are_priced_together_first() -> None:
    assert summary(found(*HIDDEN)) == (
        "stragglers: ranks 1 and 6 (compute); together they cost 5.50 of the 36.3 ms step (15.2 %); fixing one gains "
        "nothing (each 0.07 to 5.44 ms)"
    )


def test_devices_that_are_slow_alike_are_compared_with_those_not_accused() -> None:
    def slow(one: Finding, longer: float) -> Finding:
        figures = {"ratio": longer, "least_ratio": 1.1, "most_ratio": 1.3, "kernels": 7, "peers": 7}
        return replace(one, evidence=(evidence_of("whole_device", figures, ShownBy("localize"), one.ranks),))

    said = summary(found(slow(HIDDEN[0], 1.2), slow(HIDDEN[1], 1.2)))
    assert said.startswith("stragglers: ranks 1 and 6 compute 1.20× as long as peers; together ")
    assert " compute 1.15× to 1.20× as long as " in summary(found(slow(HIDDEN[0], 1.2), slow(HIDDEN[1], 1.15)))


def test_causes_that_differ_are_named_with_their_ranks() -> None:
    three = (HIDDEN[0], culprit(2, 900.0, 1_800.0, cause="input"), HIDDEN[1])
    assert summary(found(*three)).startswith(
        "stragglers: ranks 1 and 6 (compute) and rank 2 (input); together they cost 5.50 of the 36.3 ms step"
    )
    assert summary(found(*three)).endswith("; fixing one gains 900 µs at most (each 0.07 to 5.44 ms)")


def test_two_findings_about_one_rank_are_one_straggler() -> None:
    said = summary(found(HIDDEN[0], culprit(6, 300.0, 400.0, cause="input")))
    assert said.startswith("straggler: rank 6 (compute, input); all of it costs 5.50 of the 36.3 ms step")


def test_whoever_no_replay_can_price_is_named_behind_them() -> None:
    link = culprit(3, 800.0, 800.0, cause="communication", fix=(), least_us_per_step=None, most_us_per_step=None)
    assert summary(found(*HIDDEN, link)).endswith("; then rank 3 (communication, 800 µs)")


def test_one_alone_has_no_joint_price() -> None:
    alone = replace(HIDDEN[0], least_us_per_step=None, most_us_per_step=None, time_lost_us_per_step=5_000.0)
    assert summary(found(alone, together=None, accused_together=None)).startswith("straggler: rank 6 (compute, ")


def test_a_part_is_told_as_what_is_saved_first_and_last() -> None:
    (first, *_), (_, *others) = facts(HIDDEN[0]), facts(HIDDEN[0])
    assert first == (
        "fixed alone it saves 82.0 µs a step (+0.2 % throughput, 0.4 GPU-hours a day), fixed after the others 5.44 ms"
    )
    assert not any("lost per step" in one for one in others)
    assert costs(HIDDEN[0]) == "0.08 to 5.44 ms"


def test_parts_that_hide_nobody_are_one_figure() -> None:
    assert facts(culprit(6, 3_000.0, 3_000.0))[0].startswith("3.00 ms lost per step, slowdown 1.09×")


def test_the_full_screen_and_one_line_tell_the_joint_price() -> None:
    assert gain_in_words(found(*HIDDEN)) == "ranks 1 and 6 fixed: +17.9 % throughput, 29.1 GPU-hours a day"
    said = oneline(found(*HIDDEN), "job")
    assert said.startswith("job: straggler: ranks 1 and 6: compute, together 5.50 ms a step (15.2 %), p ")


def test_the_parts_are_in_the_document() -> None:
    told = triage_in_words(found(*HIDDEN))
    assert [(one.least_us_per_step, one.most_us_per_step) for one in told.findings] == [(82.0, 5440.0), (67.5, 5425.0)]


@pytest.mark.parametrize(
    ("least", "most", "told"),
    [
        (67.5, 5_440.0, "0.07 to 5.44 ms"),
        (0.0, 5_440.0, "0 to 5.44 ms"),
        (67.5, 82.0, "67.5 to 82.0 µs"),
        (900.0, 120_000.0, "0.9 to 120 ms"),
        (3_000.0, 3_000.1, "3.00 ms"),
        (400_000.0, 2_500_000.0, "0.40 to 2.50 s"),
    ],
)
def test_a_range_has_one_unit(least: float, most: float, told: str) -> None:
    assert between(least, most) == told


def test_ranks_are_named_as_in_a_sentence() -> None:
    ranks = [(3,), (1, 6), (0, 1, 2, 3, 8, 11), tuple(range(0, 20, 2))]
    assert [ranks_named(tuple(map(Rank, one))) for one in ranks] == [
        "rank 3",
        "ranks 1 and 6",
        "ranks 0-3, 8 and 11",
        "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more",
    ]


def test_a_report_shows_the_step_with_all_of_them_fixed() -> None:
    """With the first one alone fixed it would look as before."""
    who, fixes = fixed_first(found(*HIDDEN))
    assert who == "ranks 1 and 6"
    assert {rank for fix in fixes for rank in fix.ranks} == {1, 6}
    assert fixed_first(found(HIDDEN[0], accused_together=None)) == ("the first finding", HIDDEN[0].fix)
