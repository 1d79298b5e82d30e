"""What one answer says never contradicts itself: verdict, first line, prices, bar, steps, warnings and `--fail-on`.

Held on every sample and on every case beside the checkout, whatever the right answer is: other tests know that.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from support.answers import once, recorded, triaged
from support.places import CASES, SAMPLES

from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.views import StepsResult
from kair_engine.trace.model import Trace
from kair_engine.views.overview import steps
from kair_tui.cli.fail_on import parse_conditions
from kair_tui.render.triage import triage_in_words
from kair_tui.render.units import percent
from kair_tui.render.verdict import verdict_in_words
from kair_tui.render.warnings import warnings_in_words

pytestmark = pytest.mark.slow

CASES2 = CASES.parent / "cases2"
NO_TRACES: Final = frozenset({"docker_json_log", "elastic_killed_rank", "hccl_notify_log", "monitored_barrier_log"})
"""Logs that no reader knows."""
NOTABLE_JOB_WIDE, NOTABLE_WAITING = 0.1, 0.05
"""Of the bar: what a reader misses in the first line."""
SLOW_STEP = 2.0
"""Times the usual step: nobody overlooks it on the page of steps."""


def _inputs() -> Iterator[Path]:
    yield from sorted({path.parent for path in SAMPLES.glob("*/*.json.gz")})
    yield from sorted(CASES.glob("*/input"))
    yield from sorted(CASES.glob("*/*/input"))
    yield from sorted(CASES2.glob("*/input"))


def _name(source: Path) -> str:
    """`slow_host`, `two_slow_ranks_price`, `run_ahead/healthy`."""
    folder = source.parent if source.name == "input" else source
    return f"run_ahead/{folder.name}" if folder.parent.name == "run_ahead" else folder.name


RECORDINGS: Final = {_name(source): source for source in _inputs() if _name(source) not in NO_TRACES | {"compare"}} | {
    run: CASES / "compare" / "input" / run for run in ("before", "after") if CASES.is_dir()
}


@dataclass(frozen=True)
class Answer:
    """All that is said of one recording."""

    trace: Trace
    triage: TriageResult
    steps: StepsResult | None

    @property
    def warnings(self) -> str:
        """All warnings, as one text."""
        told = warnings_in_words(self.trace.job.warnings, self.triage.warnings)
        return " ".join(one.message for one in told)

    @property
    def accused(self) -> tuple[Finding, ...]:
        """Those that accuse somebody."""
        return tuple(one for one in self.triage.findings if one.pattern != "job_wide")


@cache
def answer(name: str) -> Answer:
    trace = recorded(RECORDINGS[name])
    told = triage_in_words(triaged(RECORDINGS[name]))
    return Answer(trace, told, once(steps)(trace) if trace.steps else None)


def law(
    broken: Mapping[str, Collection[str]] | None = None,
) -> Callable[[Callable[[Answer], None]], Callable[[str], None]]:
    """Hold a law on every recording. `broken` are those that break it today, by the reason."""
    reasons = {name: reason for reason, names in (broken or {}).items() for name in names}
    marked = [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=reasons[name])) if name in reasons else name
        for name in RECORDINGS
    ]

    def held(check: Callable[[Answer], None]) -> Callable[[str], None]:
        @pytest.mark.parametrize("name", marked)
        def test(name: str) -> None:
            check(answer(name))

        test.__doc__ = check.__doc__
        return test

    return held


@law()
def test_the_verdict_is_what_the_findings_say(of: Answer) -> None:
    findings, accused = of.triage.findings, of.accused
    expected = {
        "straggler": bool(accused),
        "job_wide": bool(findings) and not accused,
        "no_straggler": not findings,
        "inconclusive": not accused,
    }
    assert expected[of.triage.verdict]
    flagged = {row.rank for row in of.triage.ranking if row.flagged}
    ranked = {row.rank for row in of.triage.ranking}
    assert flagged == {rank for one in findings for rank in one.ranks} & ranked, "who left no trace has no place"


@law()
def test_the_first_line_begins_with_the_verdict_and_names_all_accused_or_counts_them(of: Answer) -> None:
    said = of.triage.summary
    words = verdict_in_words(of.triage.verdict)
    assert said.startswith((f"{words}: ", f"{words}s: "))
    for one in of.accused[:1]:
        assert all(str(rank) in said for rank in (one.ranks[0], one.ranks[-1]) if one.ranks)


@law()
def test_fail_on_asks_the_same_verdict(of: Answer) -> None:
    met = [
        word
        for word in ("straggler", "job_wide", "inconclusive")
        if any(one.is_met(of.triage) for one in parse_conditions((word,), "triage"))
    ]
    assert met == [of.triage.verdict] * (of.triage.verdict != "no_straggler")
    (no_straggler,) = parse_conditions(("verdict == no_straggler",), "triage")
    assert no_straggler.is_met(of.triage) == (not met)
    (finding,) = parse_conditions(("finding",), "triage")
    assert finding.is_met(of.triage) == bool(of.triage.findings)


@law()
def test_no_price_is_more_than_the_step_and_no_part_more_than_all(of: Answer) -> None:
    step, slack = of.triage.step_time_us, 1e-6 * of.triage.step_time_us
    together, accused = of.triage.together, of.triage.accused_together
    for one in of.triage.findings:
        assert 0 <= one.time_lost_us_per_step <= step + slack
        if one.least_us_per_step is None or one.most_us_per_step is None:
            continue
        assert accused is not None
        assert 0 <= one.least_us_per_step <= one.most_us_per_step <= accused.saved_us + slack
    if accused is not None:
        assert accused.saved_us <= step + slack
        assert together is not None
        assert together.saved_us >= accused.saved_us - slack


@law()
def test_several_accused_are_priced_together_in_the_first_line(of: Answer) -> None:
    if of.triage.accused_together is not None:
        assert "; together they cost " in of.triage.summary or "; all of it costs " in of.triage.summary


@law()
def test_what_is_lost_is_told_once(of: Answer) -> None:
    """Culprits together, and what all ranks lose besides: no more than a step has."""
    accused = of.triage.accused_together
    lost = max((one.time_lost_us_per_step for one in of.accused), default=0.0) if accused is None else accused.saved_us
    lost += sum(one.time_lost_us_per_step for one in of.triage.findings if one.pattern == "job_wide")
    assert lost <= of.triage.step_time_us * (1 + 1e-6)
    causes = {one.cause for one in of.accused}
    for one in of.triage.findings:
        if one.pattern == "job_wide" and one.cause in causes:
            assert one.priced_by == "replay", "else it may be the loss of those that are accused of it"


@law()
def test_no_straggler_says_what_its_bar_shows(of: Answer) -> None:
    bar = of.triage.bar
    if of.triage.verdict != "no_straggler" or bar is None:
        return
    for share, least in ((bar.share("job_wide"), NOTABLE_JOB_WIDE), (bar.share("stragglers"), NOTABLE_WAITING)):
        assert share <= least or percent(share) in of.triage.summary


@law()
def test_no_straggler_says_how_much_could_be_hidden_and_nothing_larger_is_open(of: Answer) -> None:
    if of.triage.verdict != "no_straggler" or not of.trace.steps:
        return
    assert of.triage.smallest_share is not None
    assert "unexplained part" in of.triage.summary
    assert all(one.share_of_step <= of.triage.smallest_share for one in of.triage.open)


@law()
def test_an_open_answer_leads_with_its_largest_item(of: Answer) -> None:
    if of.triage.verdict != "inconclusive" or not of.trace.steps:
        return
    assert of.triage.open
    largest = max(of.triage.open, key=lambda one: one.us_per_step)
    assert largest.sentence in of.triage.summary
    assert largest.settled_by in of.triage.summary


@law()
def test_next_to_no_straggler_ranks_without_a_trace_are_accounted_for(of: Answer) -> None:
    """Either the first line says how much could be hidden, or an open item names them."""
    missing = {*of.trace.job.missing_ranks}
    if of.triage.verdict == "no_straggler" and missing:
        named = {rank for one in of.triage.open for rank in one.ranks}
        assert of.triage.smallest_share is not None or missing <= named


@law(
    {
        "others wait in the step after the one in which a rank pauses, and that one is told": (
            "end_of_step_logging_marked",
        )
    }
)
def test_a_step_that_takes_twice_as_long_is_told(of: Answer) -> None:
    """In a finding, an open item, the first line or a warning."""
    if of.steps is None:
        return
    usual = of.steps.step_time_us
    slow = [one.step for one in of.steps.summary if one.max_us > SLOW_STEP * usual]
    said = {step for one in of.triage.findings for step in one.steps}
    said |= {step for one in of.triage.open for step in one.steps}
    text = f"{of.triage.summary} {of.warnings}"
    assert [step for step in slow if step not in said and f" {step}" not in text] == []


@law()
def test_only_the_first_and_the_last_steps_can_be_cut_off(of: Answer) -> None:
    if of.steps is None:
        return
    numbers = [one.step for one in of.steps.summary]
    aside = [one.step for one in of.steps.summary if not one.complete]
    inner = [step for step in aside if min(numbers) < step < max(numbers)]
    judged = set(of.trace.steps)
    between = [step for step in inner if judged and min(judged) < step < max(judged)]
    assert between == []
