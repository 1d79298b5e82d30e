"""Compares what a method says about a job with what is really wrong with it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fault_model import Truth

from kair_engine.causes import Cause
from kair_engine.results.localize import LocalizeResult
from kair_engine.results.triage import Finding, TriageResult, Verdict

NOBODYS_FAULT = frozenset({"garbage_collection", "stage_imbalance", "sequence_imbalance", "changing_culprit"})
"""Faults of which no rank is guilty: what is wrong must be said, and nobody be accused."""
ALL_OR_NONE = frozenset({"slow_gpu", "slow_host"})
"""Faults that slow all operators alike: to name one of them is wrong."""


@dataclass(frozen=True)
class Claim:
    """One thing that a method says is wrong."""

    cause: Cause | None
    """None of a method that tells no causes."""
    ranks: frozenset[int]
    """Those accused; empty where it says that no rank is to blame."""
    operator: str | None = None
    cost_us: float | None = None
    """What it says the claim costs, per step."""


@dataclass(frozen=True)
class Answer:
    """What a method says about a job."""

    verdict: Verdict
    first: int
    """The rank it finds most suspicious."""
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Score:
    """An answer compared with the truth; None where the truth has no such thing."""

    verdict: Verdict
    claims: bool
    """Something is wrong, it says."""
    accuses: bool
    """Some rank is to blame, it says."""
    innocent: bool
    """It accuses a rank that is not guilty."""
    first: bool | None
    """The most suspicious rank is guilty."""
    ranks: bool | None
    """It accuses who is guilty, all of them and nobody else, whatever cause it names."""
    right: bool | None
    """What is wrong is among its claims: the guilty ranks with their cause."""
    exact: bool | None
    """Right, and nobody else is accused."""
    operator: bool | None
    """Of a right answer: it names the operator that is slow, or none where all are."""
    cost_us: float | None
    """Of a right answer: what it says the fault costs."""


def answer_of(result: TriageResult) -> Answer:
    """Triage's verdict, ranking and findings as an answer."""
    return Answer(result.verdict, result.ranking[0].rank, tuple(map(_claim, result.findings)))


def score(truths: Sequence[Truth], answer: Answer) -> Score:
    """Compares an answer with everything that is wrong with a job; without truths the job is healthy."""
    claims = answer.claims
    guilty = frozenset[int]().union(*map(guilty_of, truths))
    accused = frozenset[int]().union(*(claim.ranks for claim in claims))
    fitting = _fitting(truths, claims)
    right = bool(fitting) if truths else None
    return Score(
        verdict=answer.verdict,
        claims=bool(claims),
        accuses=bool(accused),
        innocent=not accused <= guilty,
        first=answer.first in guilty if guilty else None,
        ranks=accused == guilty if guilty else None,
        right=right,
        exact=right and accused <= guilty if truths else None,
        operator=_names_operator(truths[0], fitting[0]) if len(truths) == 1 and fitting else None,
        cost_us=fitting[0].cost_us if len(truths) == 1 and fitting else None,
    )


def guilty_of(truth: Truth) -> frozenset[int]:
    """The ranks to accuse: of a slow group its members, which one cannot tell apart; of some faults nobody."""
    if truth.fault in NOBODYS_FAULT:
        return frozenset()
    return frozenset(truth.ranks if truth.group is None else truth.group)


def struck(truth: Truth) -> bool:
    """Whether a fault of some steps was there in any."""
    return not truth.by_step or any(truth.by_step)


def lowest_p(result: LocalizeResult) -> float:
    """The family-wise p-value of a whole job: the smallest of everything tried."""
    of_ranks = [row.p_value for row in result.scores if row.p_value is not None]
    return min([1.0, *of_ranks, *(group.p_value for group in result.slow_links)])


def same_claims(one: Answer, other: Answer) -> bool:
    """Whether two answers give one verdict, and accuse the same ranks of the same."""
    return one.verdict == other.verdict and _outline(one) == _outline(other)


def _claim(finding: Finding) -> Claim:
    ranks = frozenset[int]() if finding.pattern == "job_wide" else frozenset(finding.ranks)
    return Claim(finding.cause, ranks, finding.operator, finding.time_lost_us_per_step)


def _fitting(truths: Sequence[Truth], claims: Sequence[Claim]) -> list[Claim]:
    """The claims that say what is wrong; empty unless they say all of it.

    Of a single fault one claim must name exactly the guilty ranks. Of several, two slow ranks may be one claim or
    two, but every guilty rank must be in one with its cause, and nobody else.
    """
    if len(truths) == 1:
        return [claim for claim in claims if claim.ranks == guilty_of(truths[0]) and claim.cause == truths[0].cause]
    true = {(rank, truth.cause) for truth in truths for rank in guilty_of(truth)}
    said = {(rank, claim.cause) for claim in claims for rank in claim.ranks}
    return list(claims) if true <= said and {rank for rank, _ in said} == {rank for rank, _ in true} else []


def _names_operator(truth: Truth, claim: Claim) -> bool | None:
    if truth.operator is None and truth.fault not in ALL_OR_NONE:
        return None
    return claim.operator == truth.operator


def _outline(answer: Answer) -> Collection[tuple[Cause | None, frozenset[int]]]:
    return {(claim.cause, claim.ranks) for claim in answer.claims}
