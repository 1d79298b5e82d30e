"""Proposes fixes: those of triage's findings, and the parts that cost most."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kair_engine.causes import Cause
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import FIX_KINDS, Fix, StepPrice, WhatifResult
from kair_engine.trace.model import Layout
from kair_engine.whatif.fixes import has_text
from kair_engine.whatif.pipeline.rows import TYPES
from kair_engine.whatif.prices import Key

MIN_COST = 0.0005
"""A part that costs less than this share of the ideal step, 0.0 % as printed, is not worth a fix."""
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
    """Of a part: what it alone adds to the ideal step, as a share of it."""


@dataclass(frozen=True)
class Worker:
    """What one rank costs."""

    rank: int
    costs_us: float
    """Per step: what it alone adds to the ideal step."""
    costs: float
    """The same as a share of the ideal step."""
    slowdown: float
    exact: bool
    """False where it costs at most so much: an approximation, or a bound."""


def candidates(result: WhatifResult, findings: Sequence[Finding]) -> tuple[Candidate, ...]:
    """The findings' fixes, then the costliest kinds or types, stages, hosts and ranks; none twice."""
    found: dict[tuple[Fix, ...], Candidate] = {}
    for number, finding in enumerate(findings, 1):
        if finding.fix:
            found.setdefault(finding.fix, Candidate(finding.fix, number, finding.cause))
    for fix, costs in _parts(result):
        # A host's name can hold the signs that a fix is written with.
        if has_text(fix):
            found.setdefault((fix,), Candidate((fix,), costs=costs))
    return tuple(found.values())


def workers(
    result: WhatifResult, layout: Layout | None, ranks: Sequence[int], step: StepPrice | None = None
) -> tuple[Worker, ...]:
    """Every rank that is priced, in the mean or in one step, the costliest first."""
    if step is not None:
        exact, rest, ideal_us = step.by_rank, {}, step.ideal_us
    else:
        exact, ideal_us = result.by_rank, result.ideal_step_time_us
        rest = result.by_rank_approximate or _bounds(result, layout, ranks)
    known = {**{rank: (value, False) for rank, value in rest.items()}, **{rank: (v, True) for rank, v in exact.items()}}
    found = (_worker(rank, value, ideal_us, is_exact) for rank, (value, is_exact) in known.items())
    return tuple(sorted(found, key=lambda one: (-one.slowdown, one.rank)))


def _worker(rank: int, slowdown: float, ideal_us: float, exact: bool) -> Worker:
    costs = max(slowdown - 1, 0.0)
    return Worker(rank, costs * ideal_us, costs, slowdown, exact)


def _bounds(result: WhatifResult, layout: Layout | None, ranks: Sequence[int]) -> dict[int, float]:
    """The heatmap's values by rank: its rows are stages, its columns data-parallel ranks, or all ranks are one row."""
    if len(result.heatmap) == 1:
        return dict(zip(sorted(ranks), result.heatmap[0], strict=False))
    if layout is None:
        return {}
    places = {rank: (layout.pipeline_stage.get(rank, 0), layout.dp_rank.get(rank, 0)) for rank in ranks}
    stages, dp_ranks = (sorted({place[at] for place in places.values()}) for at in (0, 1))
    return {
        rank: result.heatmap[stages.index(stage)][dp_ranks.index(dp)]
        for rank, (stage, dp) in places.items()
        if stages.index(stage) < len(result.heatmap) and dp_ranks.index(dp) < len(result.heatmap[0])
    }


def _parts(result: WhatifResult) -> Iterator[tuple[Fix, float]]:
    kinds = set(result.by_operator_type) <= set(FIX_KINDS)
    known = {name: value for name, value in result.by_operator_type.items() if name in (*FIX_KINDS, *TYPES)}
    for name, costs in _costly(known, _OTHERS):
        yield Fix(kinds=tuple(kind for kind in FIX_KINDS if kind == name)) if kinds else Fix(operators=(name,)), costs
    yield from ((Fix(stages=(stage,)), costs) for stage, costs in _costly(result.by_stage, _OTHERS))
    yield from ((Fix(hosts=(host,)), costs) for host, costs in _costly(result.by_host, _OTHERS))
    by_rank = result.by_rank or result.by_rank_approximate
    yield from ((Fix(ranks=(rank,)), costs) for rank, costs in _costly(by_rank, _RANKS))


def _costly(parts: Mapping[Key, float], most: int) -> Iterator[tuple[Key, float]]:
    """The mapping's first few, which is ordered."""
    for name, slowdown in list(parts.items())[:most]:
        if slowdown - 1 >= MIN_COST:
            yield name, slowdown - 1
