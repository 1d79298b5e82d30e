"""What a triage says: its one sentence, findings that accuse nobody, and what each kind of evidence tells."""

from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
from support.cli_samples import triage
from support.evidence_made import evidence_of
from support.kept_cases import KeptCase, assert_kept, kept_cases

from kair_engine.ranks import Rank
from kair_engine.results.blame import RootCause
from kair_engine.results.evidence_kinds import PriceRange, ShownBy
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.warning_kinds import NobodyWaits
from kair_engine.results.whatif import FixPrice
from kair_tui.render.answer import PageOptions
from kair_tui.render.page import Page
from kair_tui.render.sentences import sentence_of
from kair_tui.render.triage import VIEW, facts, suggestion_of, title, triage_in_words, triage_totals
from kair_tui.render.verdict import costs, summary

STOPS = {
    "per_step": 32.0,
    "median_us": 13_200.0,
    "longest_us": 44_000.0,
    "share_of_step": 0.775,
    "slowest_rank_us": 80_000.0,
    "together": 0.96,
}
REPLAYED = evidence_of(
    "replayed", {"before_us": 105_000.0, "after_us": 45_000.0}, ShownBy("whatif"), about="contention"
)
TOGETHER = FixPrice("all together", 40_000.0, 65_000.0, 0.6, 1.6, 20.0)


def accused(**changed: Any) -> Finding:  # noqa: ANN401
    """A compute finding about rank 1."""
    told = vars(triage("mlp").findings[0]) | {"evidence": ()} | changed
    return Finding(**{field.name: told[field.name] for field in fields(Finding)})


def contention(**changed: Any) -> Finding:  # noqa: ANN401
    """Stops of all ranks' threads, which the replay prices at 60 ms."""
    finding = accused(
        cause="contention",
        pattern="job_wide",
        ranks=(),
        seen_on=(Rank(0), Rank(1)),
        hosts=(),
        operator=None,
        time_lost_us_per_step=60_000.0,
        slowdown=2.333,
        priced_by="replay",
    )
    return replace(finding, evidence=(evidence_of("host_stops", STOPS, ShownBy("whatif")), REPLAYED), **changed)


def found(*findings: Finding, verdict: str = "straggler", **changed: Any) -> TriageResult:  # noqa: ANN401
    told = vars(triage("mlp")) | {"verdict": verdict, "findings": findings, "warnings": ()} | changed
    return TriageResult(**{field.name: told[field.name] for field in fields(TriageResult)})


THREE = tuple(map(Rank, range(3)))
SHARED = replace(
    contention(seen_on=THREE), evidence=(evidence_of("crowded", {"ranks": 2, "cores": 1}, ranks=(Rank(0), Rank(2))),)
)
ALL_SHARE = replace(SHARED, evidence=(evidence_of("crowded", {"ranks": 3, "cores": 2}, ranks=THREE),))
THROUGHOUT = evidence_of(
    "whole_device",
    {"ratio": 1.302, "least_ratio": 1.24, "most_ratio": 1.34, "kernels": 17, "peers": 31},
    ShownBy("localize"),
    (Rank(1),),
)
HIDDEN = accused(time_lost_us_per_step=0.0, slowdown=1.0)
COPIES = accused(ranks=(), pattern="job_wide", cause="copies", seen_on=(0, 1))
BEHIND_COPIES = replace(COPIES, cause="contention", time_lost_us_per_step=0.0, slowdown=1.0)
FIRST = accused(ranks=(Rank(0),))
SINCE = accused(since=9)
UNTIL = replace(SINCE, evidence=(evidence_of("than_before", {"until": 14.0}),))
EVERY = accused(evidence=(evidence_of("periodic", {"every": 5.0, "events": 4.0}),))
FIVE = [accused(ranks=(Rank(rank),)) for rank in range(5)]
UNWAITED = NobodyWaits(share_of_step=0.12, waited_share=0.0, ranks=(Rank(1),))
ANSWERS = {
    "job-wide: its range, and that no rank is to blame": found(contention(), verdict="job_wide"),
    "who shares a core that others do not": found(SHARED, verdict="job_wide"),
    "the same behind a culprit": found(accused(), SHARED),
    "not where all share": found(ALL_SHARE, verdict="job_wide"),
    "a job-wide cause of some ranks": found(
        contention(cause="stage_imbalance", seen_on=(Rank(1),)), verdict="job_wide"
    ),
    "a culprit comes first": found(accused(time_lost_us_per_step=80_000.0), contention(), together=TOGETHER),
    "what costs more is said after it": found(contention(), accused(), together=TOGETHER),
    "a cost has its own unit": found(accused(time_lost_us_per_step=985.0)),
    "both ends of a range have": found(replace(contention(), time_lost_us_per_step=900.0), verdict="job_wide"),
    "a slow device": found(accused(operator=None, evidence=(THROUGHOUT,))),
    "of the steps since then it may be more than the mean step": found(replace(SINCE, time_lost_us_per_step=120_000.0)),
    "since when": found(SINCE),
    "until when": found(UNTIL),
    "how often": found(EVERY),
    "since when, of a second": found(FIRST, SINCE),
    "until when, of a second": found(FIRST, UNTIL),
    "how often, of a second": found(FIRST, EVERY),
    "two": found(*FIVE[:2]),
    "three more at most": found(*FIVE[:4]),
    "then their number": found(*FIVE),
    "the price of all together is not told of one": found(accused(), together=TOGETHER),
    "whom others hide is not priced at nothing": found(HIDDEN),
    "what all share is hidden by nobody who is late": found(COPIES, BEHIND_COPIES, verdict="job_wide"),
    "a slow rank that nobody waits for": found(verdict="no_straggler", warnings=(UNWAITED,)),
}


def test_the_one_sentence() -> None:
    assert_kept("triage_summaries", {name: summary(of) for name, of in ANSWERS.items()})


FINDINGS = {
    "whom others hide": HIDDEN,
    "what all share is hidden by nobody who is late": BEHIND_COPIES,
    "without ranks: where it is seen": contention(),
    "on ranks in many runs": contention(seen_on=tuple(map(Rank, range(0, 16, 2)))),
    "the step of the onset": accused(since=41),
    "idle time lies before its operator": accused(
        cause="host", operator="aten::linear", edge="idle before aten::linear"
    ),
    "a link lies between ranks": accused(cause="communication", edge="rank 0 → rank 1"),
    "an accused device names the probe": accused(),
    "a host does not": accused(cause="host"),
    "of a group one rank is probed": accused(pattern="group", ranks=(Rank(4), Rank(5)), operator=None),
}


def test_a_finding_has_a_title_facts_and_what_to_do() -> None:
    said = {name: [title(of), *facts(of), suggestion_of(of)] for name, of in FINDINGS.items()}
    assert_kept("triage_findings", said)


@pytest.mark.parametrize(
    ("part", "told"), [(0.25, "25.0 % of their time"), (1.2, "more than all of their time in several")]
)
def test_ranks_wait_no_longer_than_there_is_time(part: float, told: str) -> None:
    """Waits for collectives that are on their way together count each."""
    answer = found(accused())
    waiting_us = part * answer.step_time_us * len(answer.ranking)
    assert f"ranks wait {told}" in triage_totals(replace(answer, waiting_us_per_step=waiting_us))


@pytest.mark.parametrize("kind", ["slow_operator", "operator_behind", "more_calls", "made_late"])
def test_sentences_cut_long_operators_that_the_figures_have_whole(kind: str) -> None:
    kernel = f"void at::native::{'kernel_' * 20}"
    cause = RootCause(Rank(1), kernel, "compute", False, 5_000.0, 0.2, (40,), 3)
    evidence = evidence_of(kind, ranks=(Rank(1),), about=kernel, root_causes=(cause,))
    assert f"at::native::{'kernel_' * 20}"[:59] + "…" in sentence_of(evidence)
    (finding,) = triage_in_words(found(accused(operator=kernel, evidence=(evidence,)))).findings
    assert (finding.operator, finding.evidence[0].about) == (kernel, kernel)
    assert "kernel_" * 9 not in finding.suggestion


@pytest.mark.parametrize("case", kept_cases("evidence_sentences"), ids=str)
def test_evidence_is_told_with_its_figures(case: KeptCase) -> None:
    case.assert_said(sentence_of(evidence_of(**case.given, ranks=(Rank(1),))))


ROOT_CAUSES = tuple(
    RootCause(Rank(1), name, "compute", False, 5_000.0, 0.2, (40,), 3) for name in ("mlp", "add", "mul")
)
LATE = partial(evidence_of, "made_late", {"blamed_us": 15_000.0}, ranks=(Rank(1),))
SEVERAL = {"figures": {"excess_us_per_step": 4200.0, "share_of_step": 0.1}, "ranks": (Rank(4), Rank(5))}
OWN_FIGURES = {"ready_us_per_step": 41e3, "step_us": 120e3, "least_us": 38e3, "most_us": 44e3}
EVIDENCE = {
    "a slow device": THROUGHOUT,
    "two causes made it late": LATE(root_causes=ROOT_CAUSES[:2]),
    "the two largest of three": LATE(root_causes=ROOT_CAUSES),
    "of all ranks, how long they had no core": evidence_of("no_core", OWN_FIGURES),
    "ranks that share a core": SHARED.evidence[0],
    "ranks that share too few cores": evidence_of(
        "crowded", {"ranks": 4, "cores": 2}, ranks=tuple(map(Rank, range(4)))
    ),
    "stops under one quota": evidence_of("host_stops", {**STOPS, "together": 1.6}),
    "several each spend more": evidence_of("excess", about="compute", **SEVERAL),
    "several in one operator": evidence_of("slow_operator", about="mlp", **SEVERAL),
}


def test_evidence_of_several_ranks_and_of_all() -> None:
    assert_kept("triage_evidence", {name: sentence_of(of) for name, of in EVIDENCE.items()})


def test_a_range_that_was_replayed_is_what_it_costs() -> None:
    """Not what the rank that stands still longest stands still."""
    between = PriceRange(300.0, 9000.0)
    one = contention()
    assert costs(replace(one, evidence=(*one.evidence, between), time_lost_us_per_step=2000.0)) == "300 µs to 9.00 ms"
    nothing = PriceRange(1.0, 9000.0)
    assert costs(replace(one, evidence=(*one.evidence, nothing), time_lost_us_per_step=2000.0)) == "up to 9.00 ms"


@pytest.mark.parametrize("look", [{"width": 80}, {"width": 160}, {"width": 80, "ascii_only": True}])
def test_a_job_wide_answer_fits_the_width(look: dict[str, Any]) -> None:
    result = triage_in_words(found(contention(), verdict="job_wide"))
    page = Page(PageOptions(**look))
    VIEW.body(result, page)
    assert VIEW.tree is not None
    VIEW.tree(result, page)
    shown = page.getvalue()
    assert max(map(len, shown.splitlines())) <= look["width"]
    assert "verdict: job-wide" in shown
    assert shown.isascii() or "ascii_only" not in look


def test_a_long_title_is_wrapped_under_itself() -> None:
    page = Page(PageOptions(width=40))
    VIEW.body(triage_in_words(found(accused(operator="layer_of_experts::forward_of_all_tokens"))), page)
    first, second, third = page.getvalue().splitlines()[:3]
    assert first.startswith("1. rank 1")
    assert (second[:3], third[:3]) == ("   ", "   ")
    assert second[3] != " "
