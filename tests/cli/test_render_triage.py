"""What a triage says: its one sentence, findings that accuse nobody, and what each kind of evidence tells."""

from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
from support.cli_samples import triage
from support.evidence_made import evidence_of
from support.kept_cases import KeptCase, kept_cases

from kair_engine.ranks import Rank
from kair_engine.results.blame import RootCause
from kair_engine.results.evidence_kinds import PriceRange, ShownBy
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.whatif import FixPrice
from kair_engine.trace.model import KairWarning
from kair_tui.render.answer import PageOptions
from kair_tui.render.page import Page
from kair_tui.render.sentences import sentence_of
from kair_tui.render.triage import VIEW, facts, title, triage_in_words, triage_totals
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


def test_a_job_wide_cause_is_told_with_its_range_and_that_no_rank_is_to_blame() -> None:
    assert summary(found(contention(), verdict="job_wide")) == (
        "job-wide: CPU contention on all ranks (60.0 to 80.0 of the 105 ms step); no rank is to blame: look at "
        "the hosts' cores"
    )


def test_who_shares_a_core_that_others_do_not_is_in_the_sentence() -> None:
    three = tuple(map(Rank, range(3)))
    crowd = evidence_of("crowded", {"ranks": 2, "cores": 1}, ranks=(Rank(0), Rank(2)))
    shared = replace(contention(seen_on=three), evidence=(crowd,))
    assert "CPU contention on ranks 0-2 (60.0 of the 105 ms step; ranks 0, 2 share a core); no rank" in summary(
        found(shared, verdict="job_wide")
    )
    assert "CPU contention on ranks 0-2 costs more: 60.0 ms; ranks 0, 2 share a core" in summary(
        found(accused(), shared)
    )
    all_share = replace(shared, evidence=(evidence_of("crowded", {"ranks": 3, "cores": 2}, ranks=three),))
    assert "share" not in summary(found(all_share, verdict="job_wide"))


def test_a_job_wide_cause_of_some_ranks_names_where_it_is_seen() -> None:
    uneven = contention(cause="stage_imbalance", seen_on=(Rank(1),))
    assert "stage imbalance on rank 1 (60.0 to 80.0 of" in summary(found(uneven, verdict="job_wide"))


def test_a_culprit_comes_first_and_what_costs_more_is_said_after_it() -> None:
    large = accused(time_lost_us_per_step=80_000.0)
    assert summary(found(large, contention(), together=TOGETHER)) == (
        "straggler: rank 1 (compute, 80.0 of the 105 ms step); no rank's fault: CPU contention, 60.0 ms to 80.0 ms"
    )
    assert summary(found(contention(), accused(), together=TOGETHER)) == (
        "straggler: rank 1 (compute, 5.10 of the 105 ms step); CPU contention on all ranks costs more: 60.0 ms to "
        "80.0 ms"
    )


def test_a_cost_has_its_own_unit_where_the_step_has_another() -> None:
    small = accused(time_lost_us_per_step=985.0)
    assert summary(found(small)) == "straggler: rank 1 (compute, 985 µs of the 105 ms step)"
    across = replace(contention(), time_lost_us_per_step=900.0)
    assert "(900 µs to 80.0 ms of the 105 ms step)" in summary(found(across, verdict="job_wide"))


def test_a_slow_device_is_told_as_how_much_longer_it_takes() -> None:
    figures = {"ratio": 1.302, "least_ratio": 1.24, "most_ratio": 1.34, "kernels": 17, "peers": 31}
    throughout = evidence_of("whole_device", figures, ShownBy("localize"), (Rank(1),))
    assert summary(found(accused(operator=None, evidence=(throughout,)))) == (
        "straggler: rank 1 computes 1.30× as long as its 31 peers, in every kernel: the device, not the code; "
        "it costs 5.10 of the 105 ms step"
    )
    assert sentence_of(throughout).endswith("not the code (1.24× to 1.34× in the 17 kernels that take most)")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"since": 9}, "compute since step 9, "),
        ({"since": 9, "evidence": (evidence_of("than_before", {"until": 14.0}),)}, "compute in steps 9 to 14, "),
        ({"evidence": (evidence_of("periodic", {"every": 5.0, "events": 4.0}),)}, "compute every 5 steps, "),
    ],
)
def test_the_first_line_says_since_when_and_how_often(changed: dict[str, Any], said: str) -> None:
    assert summary(found(accused(**changed))) == f"straggler: rank 1 ({said}5.10 of the 105 ms step)"
    assert f"; then rank 1 ({said}" in summary(found(accused(ranks=(Rank(0),)), accused(**changed)))


def test_one_sentence_names_three_more_findings_at_most() -> None:
    of_rank = [accused(ranks=(Rank(rank),)) for rank in range(5)]
    for count, who in (
        (2, "rank 1 (compute, 5.10 ms)"),
        (4, "rank 1 (compute, 5.10 ms), rank 2 (compute, 5.10 ms) and rank 3 (compute, 5.10 ms)"),
        (5, "rank 1 (compute, 5.10 ms), rank 2 (compute, 5.10 ms) and 2 more"),
    ):
        first = "straggler: rank 0 (compute, 5.10 of the 105 ms step)"
        assert summary(found(*of_rank[:count])) == f"{first}; then {who}"


def test_the_price_of_all_together_is_not_told_of_a_single_finding() -> None:
    assert summary(found(accused(), together=TOGETHER)) == "straggler: rank 1 (compute, 5.10 of the 105 ms step)"


def test_a_rank_that_others_hide_is_not_priced_at_nothing() -> None:
    hidden = accused(time_lost_us_per_step=0.0, slowdown=1.0)
    assert (
        summary(found(hidden))
        == "straggler: rank 1 (compute, nothing of the 105 ms step by itself: others are as late)"
    )
    assert facts(hidden)[0].startswith("nothing lost by it alone, as others are as late")


def test_what_all_ranks_share_is_not_said_to_be_hidden_by_others_that_are_late() -> None:
    """Its threads stand still while the devices are busy with copies: nobody is late."""
    copies = accused(ranks=(), pattern="job_wide", cause="copies", seen_on=(0, 1))
    hidden = replace(copies, cause="contention", time_lost_us_per_step=0.0, slowdown=1.0)
    said = summary(found(copies, hidden, verdict="job_wide"))
    assert "CPU contention on all ranks (nothing until the other findings are fixed)" in said
    assert facts(hidden)[0].startswith("nothing lost until the other findings are fixed")


def test_a_slow_rank_that_nobody_waits_for_is_told_where_there_is_no_straggler() -> None:
    warning = KairWarning("nobody_waits", "", {"share_of_step": 0.12, "waited_share": 0.0}, (Rank(1),))
    said = summary(found(verdict="no_straggler", warnings=(warning,)))
    assert said.startswith(
        "no straggler: 2 ranks, 3 steps of 105 ms, rank 1 is slower than its peers by 12.0 % of the step, but"
    )


def test_a_finding_without_ranks_says_where_it_is_seen_and_what_it_costs() -> None:
    assert title(contention()) == "no rank is to blame: CPU contention (seen on ranks 0-1)"
    assert facts(contention())[0].startswith(
        "60.0 ms to 80.0 ms lost per step; by the replay 60.0 ms, slowdown 2.33×; without it +"
    )


@pytest.mark.parametrize(
    ("part", "told"), [(0.25, "25.0 % of their time"), (1.2, "more than all of their time in several")]
)
def test_ranks_wait_no_longer_than_there_is_time(part: float, told: str) -> None:
    """Waits for collectives that are on their way together count each."""
    answer = found(accused())
    waiting_us = part * answer.step_time_us * len(answer.ranking)
    assert f"ranks wait {told}" in triage_totals(replace(answer, waiting_us_per_step=waiting_us))


def test_the_step_of_the_onset_is_told() -> None:
    assert facts(accused(since=41))[1] == "persistent, steps 40-42, since step 41; p 0.0004"


def test_suggestions_for_accused_devices_name_the_probe_and_others_do_not() -> None:
    compute, host, wide = triage_in_words(found(accused(), accused(cause="host"), contention())).findings
    assert compute.suggestion.endswith(
        "Before draining: kair probe --rank 1 --out rank1.json on its node, the same on a healthy peer, then "
        "kair probe --compare rank1.json PEER.json."
    )
    assert "probe" not in host.suggestion + wide.suggestion


def test_of_a_group_one_rank_is_probed() -> None:
    (group,) = triage_in_words(found(accused(pattern="group", ranks=(Rank(4), Rank(5)), operator=None))).findings
    assert group.suggestion.startswith("Ranks 4-5 are slow together: ")
    assert "kair probe --rank 4 --out rank4.json on its node" in group.suggestion


def test_what_made_a_rank_late_names_the_two_largest_causes() -> None:
    causes = tuple(RootCause(Rank(1), name, "compute", False, 5_000.0, 0.2, (40,), 3) for name in ("mlp", "add", "mul"))
    told = partial(evidence_of, "made_late", {"blamed_us": 15_000.0}, ranks=(Rank(1),))
    two = "what made it late: mlp (5.00 ms over 3 collectives); add (5.00 ms over 3 collectives)"
    assert sentence_of(told(root_causes=causes[:2])) == two
    assert sentence_of(told(root_causes=causes)) == f"{two}; and lesser ones"


@pytest.mark.parametrize("kind", ["slow_operator", "operator_behind", "more_calls", "made_late"])
def test_sentences_cut_long_operators_that_the_figures_have_whole(kind: str) -> None:
    kernel = f"void at::native::{'kernel_' * 20}"
    cause = RootCause(Rank(1), kernel, "compute", False, 5_000.0, 0.2, (40,), 3)
    evidence = evidence_of(kind, ranks=(Rank(1),), about=kernel, root_causes=(cause,))
    assert f"at::native::{'kernel_' * 20}"[:59] + "…" in sentence_of(evidence)
    (finding,) = triage_in_words(found(accused(operator=kernel, evidence=(evidence,)))).findings
    assert (finding.operator, finding.evidence[0].about) == (kernel, kernel)
    assert "kernel_" * 9 not in finding.suggestion


def test_idle_time_lies_before_its_operator_and_a_link_between_ranks() -> None:
    idle = accused(cause="host", operator="aten::linear", edge="idle before aten::linear")
    assert title(idle) == f"{title(accused(operator=None)).partition(':')[0]}: host, idle before aten::linear"
    assert not any("where" in fact for fact in facts(idle))
    assert "where: rank 0 → rank 1" in facts(accused(cause="communication", edge="rank 0 → rank 1"))


def test_ranks_in_many_runs_are_counted_in_the_title() -> None:
    assert title(contention(seen_on=tuple(map(Rank, range(0, 16, 2))))).endswith("CPU contention (seen on 8 ranks)")


@pytest.mark.parametrize("case", kept_cases("evidence_sentences"), ids=str)
def test_evidence_is_told_with_its_figures(case: KeptCase) -> None:
    case.assert_said(sentence_of(evidence_of(**case.given, ranks=(Rank(1),))))


def test_of_all_ranks_it_is_told_how_long_they_had_no_core() -> None:
    figures = {"ready_us_per_step": 41e3, "step_us": 120e3, "least_us": 38e3, "most_us": 44e3}
    assert sentence_of(evidence_of("no_core", figures)) == (
        "measured by the kernel: the mean rank was ready and had no core for 41.0 ms of each step of 120 ms (38.0 ms "
        "to 44.0 ms)"
    )


def test_ranks_that_share_too_few_cores_are_named() -> None:
    crowded = evidence_of("crowded", {"ranks": 2, "cores": 1}, ranks=(Rank(0), Rank(2)))
    assert sentence_of(crowded) == "ranks 0, 2 may only run on the same core"
    more = evidence_of("crowded", {"ranks": 4, "cores": 2}, ranks=tuple(map(Rank, range(4))))
    assert sentence_of(more) == "ranks 0-3 may only run on the same 2 cores, fewer than they are"


def test_a_range_that_was_replayed_is_what_it_costs() -> None:
    """Not what the rank that stands still longest stands still."""
    between = PriceRange(300.0, 9000.0)
    one = contention()
    assert costs(replace(one, evidence=(*one.evidence, between), time_lost_us_per_step=2000.0)) == "300 µs to 9.00 ms"
    nothing = PriceRange(1.0, 9000.0)
    assert costs(replace(one, evidence=(*one.evidence, nothing), time_lost_us_per_step=2000.0)) == "up to 9.00 ms"


def test_stops_under_one_quota_are_told_from_shared_cores() -> None:
    said = sentence_of(evidence_of("host_stops", {**STOPS, "together": 1.6}))
    assert said.endswith("; ranks of a host together, as under one quota")


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


def test_several_ranks_each_spend_more() -> None:
    figures = {"excess_us_per_step": 4200.0, "share_of_step": 0.1}
    told = partial(evidence_of, figures=figures, ranks=(Rank(4), Rank(5)))
    assert sentence_of(told("excess", about="compute")).startswith("ranks 4-5 each spend 4.20 ms a step (10.0 %) more")
    assert sentence_of(told("slow_operator", about="mlp")) == (
        "ranks 4-5 spend 4.20 ms a step (10.0 %) more in mlp than their role's median"
    )
