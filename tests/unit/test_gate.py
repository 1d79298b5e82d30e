"""Findings, prices and waiting held against one another: who is dropped, who is doubted, who is kept."""

from dataclasses import replace

import numpy as np
import pytest
from support.evidence_made import evidence_of
from support.excess_builder import COMPUTE, job, quiet

from kair_engine.localize.excess import JobExcess, LateArrivals
from kair_engine.results.blame import BlameResult, RankBlame
from kair_engine.results.triage import Finding
from kair_engine.results.warning_kinds import NobodyWaits
from kair_engine.triage.gate import GATE, Facts, Gated, Outcome, decide, gate

STEPS, RANKS = 10, 4
STEP_US = 100_000.0
JOB = job(quiet(STEPS, RANKS))


def waited_for(percents: dict[int, float], collectives: int = 10) -> BlameResult:
    """What each of the three peers waited for a rank in a step, in percent of the step."""
    blamed = {rank: percent / 100 * STEP_US * (RANKS - 1) * STEPS for rank, percent in percents.items()}
    total = sum(blamed.values())
    by_rank = tuple(
        RankBlame(rank, us, us / total if total else 0.0, 1)
        for rank, us in sorted(blamed.items(), key=lambda one: -one[1])
    )
    return BlameResult(None, tuple(range(STEPS)), "robust", (), (), by_rank, (), (), total, total, 0.0, collectives, ())


def finding(rank: int | None, percent: float, cause: str = "compute") -> Finding:
    """Worth so many percent of the step; of no rank it is job-wide."""
    return Finding(
        cause=cause,
        pattern="job_wide" if rank is None else "persistent",
        ranks=() if rank is None else (rank,),
        hosts=(),
        operator=None,
        edge=None,
        steps=tuple(range(STEPS)),
        p_value=None if rank is None else 0.001,
        time_lost_us_per_step=percent / 100 * STEP_US,
        slowdown=1.1,
        evidence=(),
    )


def gated(blamed: BlameResult, *findings: Finding, hidden: tuple[float, ...] | None = None, **more: object) -> Gated:
    hidden_us = [one.time_lost_us_per_step for one in findings]
    if hidden is not None:
        hidden_us = [percent / 100 * STEP_US for percent in hidden]
    return gate(JOB, blamed, findings, hidden_us, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (Facts(), "keep"),
        (Facts(is_baseless=True), "drop"),
        (Facts(costs_by_itself=False, has_remedy=True), "keep_if_alone"),
        # What costs nothing by itself and has no remedy is hidden by others: it stands.
        (Facts(costs_by_itself=False), "keep"),
        (Facts(runs_ahead=True, is_priced_wrongly=True), "keep_by_estimate"),
        (Facts(is_priced_wrongly=True), "keep_by_estimate"),
        (Facts(costs=False, costs_by_itself=False, runs_ahead=True, is_priced_wrongly=True), "keep_by_estimate"),
        (Facts(costs=False, costs_by_itself=False, runs_ahead=True, is_of_host=True), "absorbed"),
        (Facts(costs=False, costs_by_itself=False), "worthless"),
        (Facts(costs=False, costs_by_itself=False, nobody_waits=True), "worthless"),
        (Facts(nobody_waits=True), "unwaited"),
        (Facts(runs_ahead=True), "keep"),
    ],
)
def test_the_first_row_of_the_gate_whose_facts_are_so_decides(facts: Facts, outcome: Outcome) -> None:
    assert decide(facts) == outcome


def test_every_row_of_the_gate_decides_something() -> None:
    """No row is hidden by those before it."""
    for at, (row, outcome) in enumerate(GATE):
        facts = Facts(**row)
        before = [earlier for earlier, _ in GATE[:at] if earlier.items() <= facts._asdict().items()]
        assert (before, decide(facts)) == ([], outcome)


def codes(of: Gated) -> list[tuple[str, tuple[int, ...]]]:
    return [(warning.code, warning.ranks) for warning in of.warnings]


def test_who_is_not_compared_is_accused_only_if_others_are_seen_to_wait() -> None:
    slow = finding(2, 8)
    unseen = gated(waited_for({1: 3}), slow, uncompared={2})
    assert (unseen.findings, unseen.worthless) == ((), ())
    assert gated(waited_for({2: 8}), slow, uncompared={2}).findings == (slow,)
    # For half of what it is to cost, beyond what others wait for one another.
    assert gated(waited_for({2: 3.9}), slow, uncompared={2}).findings == ()
    assert gated(waited_for({2: 8, 1: 6, 0: 6, 3: 6}), slow, uncompared={2}).findings == ()


@pytest.mark.parametrize(("uncompared", "doubted"), [({0}, False), ({0, 1}, True)])
def test_who_has_hardly_other_peers_than_those_that_miss_a_part_is_in_doubt(
    uncompared: set[int], doubted: bool
) -> None:
    slow = finding(2, 8)
    assert gated(waited_for({2: 8}), slow, uncompared=uncompared).findings == (slow,)
    assert gated(waited_for({2: 2}), slow, uncompared=uncompared).findings == (() if doubted else (slow,))
    # What the system tells rests on no peer's recording.
    known = replace(slow, evidence=(evidence_of("slow_network", {}),))
    assert gated(waited_for({2: 2}), known, uncompared=uncompared).findings == (known,)


@pytest.mark.parametrize(
    ("on_device", "collectives", "stands"), [(False, 10, False), (True, 10, True), (True, 0, True)]
)
def test_beside_peers_that_lost_a_part_a_rank_does_no_more(on_device: bool, collectives: int, stands: bool) -> None:
    """On threads; on a device who did less is not told from who lost a part."""
    more = replace(finding(2, 8, "uneven_work"), evidence=(evidence_of("more_calls", {}),))
    of, waited = replace(JOB, on_device=on_device), waited_for({2: 8} if collectives else {}, collectives)
    assert gate(of, waited, (more,), [8_000.0], uncompared={0, 1}).findings == ((more,) if stands else ())
    assert gate(of, waited, (more,), [8_000.0]).findings == (more,)


def test_a_link_that_costs_nothing_leaves_nothing_open() -> None:
    """Its ranks are waited for, as those of a late stage are; a link makes none of them late."""
    link = replace(finding(2, 0.1, "communication"), ranks=(2, 3), pattern="group", edge="rank 2 → rank 3")
    result = gated(waited_for({2: 8, 1: 6}), link)
    assert (result.findings, codes(result), result.worthless) == ((), [], ())


def test_who_costs_something_and_is_waited_for_is_accused() -> None:
    slow = finding(2, 8)
    assert gated(waited_for({2: 8}), slow) == Gated((slow,))


def test_nobody_waits_for_a_rank_that_is_innocent() -> None:
    result = gated(waited_for({1: 3, 2: 0.5}), finding(2, 8))
    assert (result.findings, codes(result), result.worthless) == ((), [("nobody_waits", (2,))], ())
    (warning,) = result.warnings
    assert isinstance(warning, NobodyWaits)
    assert (warning.share_of_step, warning.waited_share) == pytest.approx((0.08, 0.005))


def test_who_is_slow_in_its_transfers_need_not_be_waited_for() -> None:
    """The other end waits within the transfer, which is no waiting for a rank."""
    slow = finding(2, 8, "communication")
    assert gated(waited_for({1: 3, 2: 0.5}), slow).findings == (slow,)


def test_without_collectives_nobody_is_seen_waiting_and_the_tests_count() -> None:
    slow = finding(2, 8)
    assert gated(waited_for({}, collectives=0), slow).findings == (slow,)


def test_what_is_worth_less_than_a_percent_is_no_finding_and_the_budget_sees_who_is_waited_for() -> None:
    slow = finding(2, 0.9)
    assert gated(waited_for({2: 0.9}), slow) == Gated(worthless=(slow,))
    # Nobody waits in every step for who is late now and then.
    assert gated(waited_for({2: 8}), replace(slow, pattern="intermittent")) == Gated()


def test_of_two_that_are_equally_late_either_alone_costs_nothing_and_both_are_accused() -> None:
    both = finding(1, 0.1), finding(2, 0.1)
    result = gated(waited_for({1: 4, 2: 4}), *both, hidden=(8, 8))
    assert (result.findings, result.worthless) == (both, ())


def test_who_is_hidden_by_others_that_are_as_late_need_not_be_waited_for() -> None:
    both = finding(1, 0.1), finding(2, 0.1)
    result = gated(waited_for({1: 8, 2: 0.2}), *both, hidden=(8, 8))
    assert (result.findings, codes(result)) == (both, [])


def test_uneven_batches_that_evening_out_does_not_help_are_told_where_nothing_else_is_found() -> None:
    """Work moves about: that a replay saves nothing says nothing of how uneven it is."""
    uneven = finding(None, 0.2, "sequence_imbalance")
    (told,) = gated(waited_for({}), uneven, hidden=(6,)).findings
    assert (told.priced_by, told.fix) == ("excess", ())
    assert told.time_lost_us_per_step == pytest.approx(0.06 * STEP_US)
    assert told.slowdown == pytest.approx(100 / 94)
    slow = finding(2, 8)
    assert gated(waited_for({2: 8}), slow, uneven, hidden=(8, 6)).findings == (slow,)


def last_at(rank: int, of_ten: int, longer: float) -> JobExcess:
    """Rank 2's kernels take so many percent of the step longer; in every step, of ten collectives that were waited
    for, the rank is last at so many, and rank 0 at the others.
    """
    percents = quiet(STEPS, RANKS)
    percents[:, COMPUTE, 2] += longer
    last = np.array([rank] * of_ten + [0] * (10 - of_ten))
    late = LateArrivals(last, *(np.full(10, 1_000_000),) * 3)
    made = job(percents)
    return replace(made, steps=tuple(replace(step, late=late) for step in made.steps))


@pytest.mark.parametrize(
    ("last", "worth", "longer", "doubted"),
    [(8, 2, 30, True), (7, 2, 30, False), (8, 11, 30, False), (8, 0, 0.5, False), (8, 0, 4, True)],
)
def test_a_replay_that_prices_the_last_rank_at_less_than_a_third_of_its_kernels_is_in_doubt(
    last: int, worth: float, longer: float, doubted: bool
) -> None:
    """Arrivals and durations say the same without it."""
    slow = finding(2, worth)
    result = gate(last_at(2, last, longer), waited_for({}), (slow,), [worth / 100 * STEP_US], runs_ahead=True)
    told = [warning.code for warning in result.warnings]
    if doubted:
        (kept,) = result.findings
        assert (kept.ranks, kept.priced_by, told) == ((2,), "excess", ["replay_in_doubt"])
        assert kept.time_lost_us_per_step == pytest.approx(longer / 100 * STEP_US, rel=0.05)
    else:
        assert "replay_in_doubt" not in told
        assert result.findings in ((), (slow,))


def test_what_a_replay_prices_at_nothing_is_absorbed_where_it_is_a_hosts() -> None:
    hidden, computes = finding(2, 0.2, "input"), finding(1, 0.2)
    result = gate(JOB, waited_for({2: 30}), (hidden, computes), [200.0, 200.0], runs_ahead=True)
    assert (result.findings, result.absorbed, result.worthless) == ((), (hidden,), (computes,))
