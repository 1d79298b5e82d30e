"""What several accused cost: all of them together first, then each one's part as a range, wherever it is shown."""

from dataclasses import fields, replace
from typing import Any

from support.cli_samples import triage
from support.evidence_made import evidence_of
from support.kept_cases import assert_kept

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


UNPRICED = culprit(3, 800.0, 800.0, cause="communication", fix=(), least_us_per_step=None, most_us_per_step=None)
ALONE = replace(HIDDEN[0], least_us_per_step=None, most_us_per_step=None, time_lost_us_per_step=5_000.0)


def slow(one: Finding, longer: float) -> Finding:
    figures = {"ratio": longer, "least_ratio": 1.1, "most_ratio": 1.3, "kernels": 7, "peers": 7}
    return replace(one, evidence=(evidence_of("whole_device", figures, ShownBy("localize"), one.ranks),))


ANSWERS = {
    "two that hide each other": found(*HIDDEN),
    "devices that are slow alike": found(slow(HIDDEN[0], 1.2), slow(HIDDEN[1], 1.2)),
    "devices that are slow": found(slow(HIDDEN[0], 1.2), slow(HIDDEN[1], 1.15)),
    "causes that differ": found(HIDDEN[0], culprit(2, 900.0, 1_800.0, cause="input"), HIDDEN[1]),
    "two findings about one rank": found(HIDDEN[0], culprit(6, 300.0, 400.0, cause="input")),
    "whoever no replay can price": found(*HIDDEN, UNPRICED),
    "one alone": found(ALONE, together=None, accused_together=None),
}
RANKS = [(3,), (1, 6), (0, 1, 2, 3, 8, 11), tuple(range(0, 20, 2))]
RANGES = [(67.5, 5_440.0), (0, 5_440.0), (67.5, 82.0), (900.0, 120_000.0), (3_000.0, 3_000.1), (400_000.0, 2_500_000.0)]


def test_what_several_cost_is_said_together_first_and_as_ranges_of_one_unit() -> None:
    said = {name: [summary(of), oneline(of, "job"), gain_in_words(of)] for name, of in ANSWERS.items()}
    parts = {"a part": HIDDEN[0], "a part that hides nobody": culprit(6, 3_000.0, 3_000.0)}
    of_one = {name: [*facts(one), costs(one)] for name, one in parts.items()}
    named = {
        "ranges": [between(*one) for one in RANGES],
        "ranks": [ranks_named(tuple(map(Rank, one))) for one in RANKS],
    }
    assert_kept("joint_prices", said | of_one | named)


def test_the_parts_are_in_the_document() -> None:
    told = triage_in_words(found(*HIDDEN))
    assert [(one.least_us_per_step, one.most_us_per_step) for one in told.findings] == [(82.0, 5440.0), (67.5, 5425.0)]


def test_a_report_shows_the_step_with_all_of_them_fixed() -> None:
    """With the first one alone fixed it would look as before."""
    who, fixes = fixed_first(found(*HIDDEN))
    assert who == "ranks 1 and 6"
    assert {rank for fix in fixes for rank in fix.ranks} == {1, 6}
    assert fixed_first(found(HIDDEN[0], accused_together=None)) == ("the first finding", HIDDEN[0].fix)
