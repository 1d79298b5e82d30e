"""Kernels that communicate though no name of theirs says so: those in which ranks wait for one another.

Whoever waits in one spends longer in it the less it has to do, and would be accused for it. What computes never ends at
one time on two ranks that began it at different ones.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess, job_excess
from kair_engine.localize.localization import Localization, standing_out
from kair_engine.timeline.clocks import synchronise
from kair_engine.timeline.collectives import ordinal
from kair_engine.trace.batches import keeping_steps, known_once, step_batches
from kair_engine.trace.columns import Columns
from kair_engine.trace.format import STEP_SCOPE
from kair_engine.trace.large_steps import as_of_some, large_steps, read_chosen
from kair_engine.trace.loading import COLUMNS, each_step, operations_of, recoded
from kair_engine.trace.model import KairWarning, Trace, short_warning
from kair_engine.trace.operations import COMPUTE, Operations

_AT_ONCE_NS: Final = 20_000.0
"""Ends of one collective on two devices of a host, on aligned clocks (49 µs seen, most below 10)."""
_APART: Final = 5.0
"""On average, the begins must be this many times as far apart as the ends."""
_OF_ALL: Final = 0.9
_LOOKED_AT: Final = 5
"""Steps, of large ones the first that are read together."""
_MOST_SUSPECTS: Final = 16
_FEWEST: Final = 6
"""Times that two ranks must have run it."""
_READ_ONCE: Final = 1_000_000
"""Operations, 110 bytes each, that stay in memory from stage 1 for the question that asked for it."""


def with_collectives_marked(trace: Trace) -> Trace:
    """Return the trace as triage comes to see it, for commands that accuse nobody: what ranks wait in is communication.

    That takes stage 1, of recordings of devices alone; where its steps are few, they stay for what is asked then.
    """
    # What a what-if recording holds has its type from the format, not by a kernel's name.
    if not trace.job.has_device or trace.job.format == "whatif" or len(trace.job.ranks) == 1:
        return trace
    return known_once(trace, "separated", lambda: _with_collectives_marked(trace))


def _with_collectives_marked(trace: Trace) -> Trace:
    if trace.memory is None and trace.workers is None:
        trace = keeping_steps(trace, _READ_ONCE)
    if not trace.steps:
        return trace
    job = job_excess(trace)
    found = _with_names(trace, job, standing_out(job))
    return trace if found is None else _with_collectives_marked(found)


def with_unnamed_collectives(trace: Trace, found: Localization) -> Trace | None:
    """Return the trace with the kernels taken for communication in which ranks that stand out were waiting; None: no
    such.
    """
    return _with_names(trace, found.job, (*found.anomalies, *found.undecided))


def _with_names(trace: Trace, job: JobExcess, standing_out: Sequence[Anomaly]) -> Trace | None:
    if not trace.job.has_device or not standing_out:
        return None
    suspects = sorted({place for one in standing_out for place in one.positions})
    asked = job.ranks[suspects[:_MOST_SUSPECTS]].tolist()
    first = _beside(trace.select(next(step_batches(trace))[:_LOOKED_AT]), asked)
    names = known_once(trace, f"waited in by {asked}", lambda: _waited_in(first, job.operators, asked))
    if not names:
        return None
    marked = replace(trace.job, communicates=(*trace.job.communicates, *names))
    return replace(trace, job=marked, memory=None, known={}, derived=None)


def unnamed_collective_warnings(trace: Trace) -> tuple[KairWarning, ...]:
    """Warn that kernels were taken for communication."""
    names = trace.job.communicates
    if not names:
        return ()
    text = f"ranks wait for one another in {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else "")
    return (short_warning("unknown_communication", f"{text}: taken for communication, which no known name says"),)


def _beside(trace: Trace, suspects: Sequence[int]) -> Trace:
    """Of a step that is not held whole only the ranks on the suspects' hosts, of as many suspects as can be held."""
    if not large_steps(trace):
        return trace
    hosts, on_host = trace.job.hosts, defaultdict[str, list[int]](list)
    for rank in trace.job.ranks:
        on_host[hosts.get(rank, "")].append(rank)
    return as_of_some(trace, [one for rank in suspects for one in (rank, *on_host[hosts.get(rank, "")])])


def _waited_in(trace: Trace, names: Iterable[str], ranks: Sequence[int]) -> tuple[str, ...]:
    suspects = np.flatnonzero(np.isin(trace.job.ranks, ranks)).tolist()
    seen: dict[str, list[tuple[Floats, Floats]]] = {name: [] for name in names}
    for ops in _steps(trace, seen) if seen else ():
        offset = synchronise(ops).clocks.offset_ns[ops.rank]
        code_of = {text: code for code, text in ops.name_text.items()}
        for name, times in seen.items():
            rows = np.flatnonzero((ops.name == code_of.get(name, -1)) & ops.on_stream & (ops.kind == COMPUTE))
            times.append(_times(ops, rows, offset))
    return tuple(name for name, times in seen.items() if _is_waited_in(times, suspects))


def _steps(trace: Trace, names: Collection[str]) -> Iterator[Operations]:
    """Yield what ranks meet in, and what computes and has one of these names, step by step."""
    if trace.memory is not None:
        yield from each_step(trace)
        return

    def chosen(rows: Columns) -> Bools:
        communicates = rows.is_any("kind", ("collective", "send", "recv"))
        named = rows.is_any("kind", ("compute",)) & rows.is_any("name", {*names, *trace.job.communicates})
        return communicates | named | rows.is_any("kind", ("scope",)) & rows.is_any("name", (STEP_SCOPE,))

    rows = recoded(trace, read_chosen(trace, COLUMNS, chosen))
    for step in trace.steps:
        yield operations_of(trace, rows.chosen(np.flatnonzero(rows.of["step"] == step)), step)


def _times(ops: Operations, rows: Ints, offset: Floats) -> tuple[Floats, Floats]:
    """(begins, ends) of the k-th call on each rank, both (calls × ranks), NaN where a rank made fewer."""
    turn = ordinal(ops.rank[rows][None, :]) if len(rows) else rows
    begins = np.full((int(turn.max(initial=-1)) + 1, len(ops.ranks)), np.nan)
    ends = np.full_like(begins, np.nan)
    begins[turn, ops.rank[rows]] = ops.start_ns[rows] - offset[rows]
    ends[turn, ops.rank[rows]] = ops.end_ns[rows] - offset[rows]
    return begins, ends


def _is_waited_in(times: Sequence[tuple[Floats, Floats]], suspects: Sequence[int]) -> bool:
    """Whether one of the suspects nearly always ends it at once with another rank, and begins it at another time."""
    width = max((begins.shape[1] for begins, _ in times), default=0)
    begins, ends = (np.concatenate([pair[at] for pair in times if pair[0].shape[1] == width]) for at in (0, 1))
    for rank in (one for one in suspects if one < width):
        apart, begun = (np.abs(np.delete(of - of[:, rank, None], rank, axis=1)) for of in (ends, begins))
        known = np.count_nonzero(~np.isnan(apart), axis=0)
        at_once = np.count_nonzero(apart <= _AT_ONCE_NS, axis=0)
        for other in np.flatnonzero((known >= _FEWEST) & (at_once >= _OF_ALL * known)).tolist():
            if np.nanmean(begun[:, other]) > _APART * max(float(np.nanmean(apart[:, other])), _AT_ONCE_NS):
                return True
    return False
