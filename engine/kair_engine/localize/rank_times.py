"""What ranks do by themselves in a step, added up per rank: of all ranks at once, or of some after others."""

from collections.abc import Mapping, Sequence

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.timeline.coverage import calls
from kair_engine.timeline.host_activity import idle_for_calls_ns
from kair_engine.timeline.host_time import Stretches
from kair_engine.timeline.inputs import (
    InputShapes,
    input_shapes,
    joined_shapes,
    shapes_of_some,
    unmarked_fetching_ns,
)
from kair_engine.timeline.self_time import (
    INPUT_PHASE,
    ByOperator,
    by_operator,
    host_gap_ns,
    side_by_side,
    tail_gap_ns,
    unshared_ns,
)
from kair_engine.trace.operations import COMPUTE, GC, INPUT, MEMORY, PHASE_NAMES, Operations


@dataclass(frozen=True)
class RankTimes:
    """Of some ranks of a step, in ns: what needs no other rank's recording."""

    ranks: Ints
    """Their numbers, in order."""
    compute_ns: Floats
    input_ns: Floats
    host_ns: Floats
    """Per rank, like those before."""
    passes_ns: Floats
    """(PHASE_NAMES × ranks): its own compute in each."""
    idle_ns: Floats
    """(PHASE_NAMES × ranks): what its host kept it idle in each."""
    fetching_ns: Floats
    """Of the same, what it may have fetched its batch in, where nothing marks that (inputs.py)."""
    garbage_ns: Floats
    profiling_ns: Floats
    """Per rank, what its threads were held up for by the profiler."""
    activity_ns: Floats
    """(HOST_KINDS × ranks): what its host does while its device idles, where that allocates or compiles; else 0."""
    stretches: Stretches
    spent_ns: ByOperator
    """On operators that compute or fetch input."""
    calls: ByOperator
    """Of the same."""
    shapes: InputShapes
    """What the same calls were given, as far as that is recorded."""
    fetching: frozenset[str]
    """The names of those that fetch."""
    counted: ByOperator
    """How often each operator was called, of those that show how much was recorded (coverage.py)."""


_PER_RANK = (
    "compute_ns",
    "input_ns",
    "host_ns",
    "passes_ns",
    "idle_ns",
    "fetching_ns",
    "garbage_ns",
    "profiling_ns",
    "activity_ns",
)
"""The arrays of RankTimes whose last dimension is the ranks."""


def rank_times(ops: Operations) -> RankTimes:
    """Sum each rank's own time."""
    own, idle, ranks = unshared_ns(ops).astype(float), host_gap_ns(ops), len(ops.ranks)
    gap = idle.astype(float)
    computed = np.where(_computing(ops), own, 0.0)

    def total(selected: Bools | None, values: Floats) -> Floats:
        chosen = np.flatnonzero(np.ones(len(ops), dtype=bool) if selected is None else selected)
        return np.bincount(ops.rank[chosen], weights=values[chosen], minlength=ranks).astype(float)

    works = (_computing(ops) | (ops.kind == INPUT)) & ~ops.of_side_threads
    rows, input_ns = np.flatnonzero(works), total(ops.kind == INPUT, own)
    return RankTimes(
        ranks=ops.ranks,
        compute_ns=total(_computing(ops), own),
        input_ns=input_ns,
        host_ns=total(ops.kind == GC, own) + _idle_ns(ops, total(None, gap), input_ns) + tail_gap_ns(ops),
        passes_ns=_by_phase(ops, computed),
        idle_ns=_by_phase(ops, gap),
        fetching_ns=unmarked_fetching_ns(ops, idle),
        garbage_ns=total(ops.kind == GC, own),
        profiling_ns=total(ops.of_profiler, own),
        activity_ns=idle_for_calls_ns(ops),
        stretches=Stretches.of(ops, gap),
        spent_ns=by_operator(ops, rows, own),
        calls=by_operator(ops, rows),
        shapes=input_shapes(ops, rows),
        fetching=frozenset(ops.name_text[code] for code in np.unique(ops.name[ops.kind == INPUT]).tolist()),
        counted=calls(ops),
    )


def of_some(times: RankTimes, chosen: Ints, ranks: Ints) -> RankTimes:
    """Those of some of the ranks (positions, in order), whose numbers are `ranks`; names that none of them has go."""
    place = np.full(len(times.ranks), NONE)
    place[chosen] = np.arange(len(chosen))
    of = place[times.stretches.rank]
    held = of != NONE
    called, counted = (np.flatnonzero(of.values[:, chosen].any(axis=1)) for of in (times.calls, times.counted))
    return RankTimes(
        ranks=ranks,
        **{name: getattr(times, name)[..., chosen] for name in _PER_RANK},
        stretches=Stretches(of[held], times.stretches.number[held], times.stretches.idle_ns[held]),
        spent_ns=times.spent_ns.of(called, chosen),
        calls=times.calls.of(called, chosen),
        shapes=shapes_of_some(times.shapes, chosen),
        fetching=times.fetching,
        counted=times.counted.of(counted, chosen),
    )


def joined(parts: Sequence[RankTimes], order: Mapping[str, int] | None = None) -> RankTimes:
    """Those of all ranks, of parts of them in order; names come in that `order`, or as the parts have them."""
    if len(parts) == 1:
        return parts[0]

    def together(name: str) -> Floats:
        return np.concatenate([getattr(part, name) for part in parts], axis=-1)

    first = np.cumsum([0, *(len(part.ranks) for part in parts)])
    return RankTimes(
        ranks=np.concatenate([part.ranks for part in parts]),
        **{name: together(name) for name in _PER_RANK},
        stretches=Stretches(
            np.concatenate([part.stretches.rank + begin for part, begin in zip(parts, first, strict=False)]),
            np.concatenate([part.stretches.number for part in parts]),
            np.concatenate([part.stretches.idle_ns for part in parts]),
        ),
        spent_ns=side_by_side([part.spent_ns for part in parts], order),
        calls=side_by_side([part.calls for part in parts], order),
        shapes=joined_shapes([part.shapes for part in parts], order),
        fetching=frozenset().union(*(part.fetching for part in parts)),
        counted=side_by_side([part.counted for part in parts], order),
    )


def _idle_ns(ops: Operations, gap_ns: Floats, input_ns: Floats) -> Floats:
    """Per rank what its device idled for its host, input apart: a host that runs ahead fetches long before it shows."""
    return np.maximum(gap_ns - input_ns, 0.0) if ops.runs_ahead else gap_ns


def _computing(ops: Operations) -> Bools:
    return np.asarray(is_one_of(ops.kind, (COMPUTE, MEMORY)) & (ops.phase != INPUT_PHASE))


def _by_phase(ops: Operations, values: Floats) -> Floats:
    rows = [np.flatnonzero(ops.phase == phase) for phase in range(len(PHASE_NAMES))]
    return np.stack([np.bincount(ops.rank[of], weights=values[of], minlength=len(ops.ranks)) for of in rows])
