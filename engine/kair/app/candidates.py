"""Proposes fixes: those of triage's findings, and the parts that cost most."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kair_engine.causes import Cause
from kair_engine.results.fixes import has_text
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import FIX_KINDS, Fix, StepPrice, WhatifResult
from kair_engine.whatif.pipeline.rows import TYPES
from kair_engine.whatif.prices import Key

MIN_COST = 0.0005
"""A part whose fix saves less than this share of the step, 0.0 % as printed, is not worth one."""
_RANKS, _OTHERS = 4, 3
"""How many of the costliest of each sort."""


@dataclass(frozen=True)
class Candidate:
    """Fixes that belong together, and why they are worth a try."""

    fixes: tuple[Fix, ...]
    finding: int | None = None
    """The place of the finding that they undo, from 1."""
    cause: Cause | None = None
    """Of that finding."""
    costs: float | None = None
    """Of a part: what its fix saves, as a share of the recorded step."""


@dataclass(frozen=True)
class Worker:
    """What one rank costs, or alone adds to an ideal job."""

    rank: int
    costs_us: float
    """Per step: what its fix saves, or what it adds."""
    costs: float
    """The same as a share of the recorded step, or of the ideal one: S_w − 1 [W]."""
    exact: bool
    """False where it costs at most so much."""


def candidates(result: WhatifResult, findings: Sequence[Finding]) -> tuple[Candidate, ...]:
    """Return the findings' fixes, then the costliest kinds or types, stages, hosts and ranks; none twice."""
    found: dict[tuple[Fix, ...], Candidate] = {}
    for number, finding in enumerate(findings, 1):
        if finding.fix:
            found.setdefault(finding.fix, Candidate(finding.fix, number, finding.cause))
    for fix, costs in _parts(result):
        # A host's name can hold the signs that a fix is written with.
        if has_text(fix):
            found.setdefault((fix,), Candidate((fix,), costs=costs))
    return tuple(found.values())


def workers(result: WhatifResult, step: StepPrice | None = None) -> tuple[Worker, ...]:
    """Return every priced rank, for the mean step or for one step, the costliest first."""
    if step is not None:
        exact, at_most, step_us = step.saved_by_rank_us, {}, step.replayed_us
    else:
        exact, at_most, step_us = result.saved_by_rank_us, result.saved_by_rank_at_most_us, result.step_time_us
    known = {rank: (saved_us, rank in exact) for rank, saved_us in {**at_most, **exact}.items()}
    found = (_worker(rank, saved_us, step_us, is_exact) for rank, (saved_us, is_exact) in known.items())
    # What was replayed stands before what costs no more than a bound.
    return tuple(sorted(found, key=lambda one: (not one.exact, -one.costs_us, one.rank)))


def workers_alone(result: WhatifResult, step: StepPrice | None = None) -> tuple[Worker, ...]:
    """Return what every rank adds by itself to an ideal job, for the mean step or for one step, the largest first."""
    of = result if step is None else step
    ideal_us = result.ideal_step_time_us if step is None else step.ideal_us
    known = dict.fromkeys(of.by_rank, True)
    slowdowns = dict(of.by_rank)
    if step is None:
        at_most = {rank: 1 + us / ideal_us for rank, us in result.saved_by_rank_at_most_us.items()}
        slowdowns = {**at_most, **result.by_rank_approximate, **slowdowns}
    found = (_worker(rank, (one - 1) * ideal_us, ideal_us, rank in known) for rank, one in slowdowns.items())
    return tuple(sorted(found, key=lambda one: (not one.exact, -one.costs_us, one.rank)))


def _worker(rank: int, saved_us: float, step_us: float, exact: bool) -> Worker:
    costs_us = max(saved_us, 0.0)
    return Worker(rank, costs_us, costs_us / step_us if step_us else 0.0, exact)


def _parts(result: WhatifResult) -> Iterator[tuple[Fix, float]]:
    of_types, step_us = result.saved_by_operator_type_us, result.step_time_us
    kinds = set(of_types) <= set(FIX_KINDS)
    known = {name: value for name, value in of_types.items() if name in (*FIX_KINDS, *TYPES)}
    for name, costs in _costly(known, step_us, _OTHERS):
        yield Fix(kinds=tuple(kind for kind in FIX_KINDS if kind == name)) if kinds else Fix(operators=(name,)), costs
    stages, hosts = result.saved_by_stage_us, result.saved_by_host_us
    # Delays that several ranks share are no single rank's to fix.
    ranks: dict[int, float] = {
        one[0]: result.saved_by_rank_us[one[0]] for one in result.ranks_by_saving if len(one) == 1
    }
    yield from ((Fix(stages=(stage,)), costs) for stage, costs in _costly(stages, step_us, _OTHERS))
    yield from ((Fix(hosts=(host,)), costs) for host, costs in _costly(hosts, step_us, _OTHERS))
    yield from ((Fix(ranks=(rank,)), costs) for rank, costs in _costly(ranks, step_us, _RANKS))


def _costly(saved_us: Mapping[Key, float], step_us: float, most: int) -> Iterator[tuple[Key, float]]:
    """Yield the mapping's first few, which is ordered: each with the share of the step that its fix saves."""
    for name, saved in list(saved_us.items())[:most]:
        if saved >= MIN_COST * step_us:
            yield name, saved / step_us
