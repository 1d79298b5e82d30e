"""Reads a large step some ranks at a time, and keeps only how all ranks meet.

Ranks meet in communication, which is a few operations of thousands. A rank's other operations are reduced while its
rows are in memory, and dropped. So memory grows with the communication of a step instead of its operations.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from kair_engine.arrays import Bools, is_one_of, whole_parts
from kair_engine.frozen import dataclass
from kair_engine.trace.batches import ROWS_AT_A_TIME, operations_of_steps
from kair_engine.trace.columns import Columns, joined, ranks_together, read_columns
from kair_engine.trace.loading import each_step, operations_of, read_rows
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import COLLECTIVE, KIND_NAMES, RECV, SCOPE, SEND, STEP_SCOPE, Operations

Thing = TypeVar("Thing")
Answer = TypeVar("Answer")

LARGE: Final = 4_000_000
"""Operations of a step above which it is not held whole: each takes 220 bytes, more in a replay."""
AT_A_TIME: Final = 500_000
"""Operations of some ranks that are read together."""
FEW: Final = 100_000
"""The same if few of them are kept."""
CLOSE_UP: Final = 1_000_000
"""Approximate number of a large step's operations that are held for a close examination."""
FEWEST: Final = 8
"""Minimum of ranks for that: with fewer there is no meaningful median."""


@dataclass
class LargeStep:
    """A step of which only the meetings are held: communication, and the ranks' step scopes."""

    trace: Trace
    step: int
    meetings: Columns
    """Empty after a call of `detail`."""

    @classmethod
    def read(cls, trace: Trace, step: int, look: Callable[[Operations], Thing]) -> "tuple[LargeStep, list[Thing]]":
        """Read the step once; `look` gets all operations of some ranks at a time, in the ranks' order."""
        looked, met = [], []
        for rows in some_ranks_of_step(trace, step):
            met.append(_without_unused_texts(rows.chosen(np.flatnonzero(_is_meeting(rows)))))
            looked.append(look(_operations_of_some(trace, rows, step)))
            del rows
        return cls(trace, step, joined(met)), looked

    @classmethod
    def met(cls, trace: Trace, step: int) -> "LargeStep":
        """Return the step without a look at other operations."""
        return cls.read(trace, step, lambda _: None)[0]

    def operations(self) -> Operations:
        """Return the meetings of all ranks."""
        meetings = Columns(dict(self.meetings.of), self.meetings.texts)
        return operations_of(self.trace, meetings, self.step)

    @property
    def ranks_held(self) -> int:
        """The number of ranks whose operations may be held, assuming equal sizes."""
        times = self.trace.job.step_times
        of_rank = [n for step, n in zip(times.step, times.operations, strict=True) if step == self.step]
        return min(max(int(CLOSE_UP * len(of_rank) / max(sum(of_rank), 1)), FEWEST), len(of_rank))

    def detail(self, ranks: Collection[int]) -> Operations:
        """Return all operations of some ranks and the meetings of the others, and drop the meetings here."""
        rows = self.meetings.chosen(np.flatnonzero(~np.isin(self.meetings.of["rank"], list(ranks))))
        self.meetings = self.meetings.chosen(np.zeros(0, dtype=np.int64))
        rows = joined([rows, read_rows(self.trace.of_ranks(ranks), [self.step])])
        return operations_of(self.trace, rows, self.step)


def of_steps(
    part: Trace,
    of_step: Callable[[Operations], Answer],
    look: Callable[[Operations], Thing],
    of_large: Callable[[LargeStep, list[Thing]], Answer],
    operations: int = ROWS_AT_A_TIME,
) -> Iterator[Answer]:
    """Yield `of_step` of every chosen step in order, `operations` read at a time; for large steps `of_large` of the
    step and `look`'s results.
    """
    large = set(large_steps(part))
    if not large:
        # map, not a comprehension, which would hold one step while the next is read.
        yield from map(of_step, each_step(part, operations))
        return
    for step in part.steps:
        if step in large:
            yield of_large(*LargeStep.read(part, step, look))
        else:
            yield from map(of_step, each_step(part.select([step])))


def each_part(trace: Trace) -> Iterator[Operations]:
    """Yield the chosen steps' operations in order, those of a large step some ranks at a time, in order.

    The times of a step's parts share one origin.
    """
    large = set(large_steps(trace))
    if not large:
        yield from each_step(trace)
        return
    times = trace.job.step_times
    for step in trace.steps:
        if step not in large:
            yield from each_step(trace.select([step]))
            continue
        origin = min(begin for begin, of in zip(times.begin_ns, times.step, strict=True) if of == step)
        yield from (_since(_operations_of_some(trace, rows, step), origin) for rows in some_ranks_of_step(trace, step))


def large_steps(trace: Trace) -> list[int]:
    """Return the chosen steps that are too large to be held whole."""
    return [step for step, operations in operations_of_steps(trace).items() if operations > LARGE]


def as_of_some(trace: Trace, ranks: Iterable[int]) -> Trace:
    """Return the trace of the first of these ranks whose steps can be held whole: CLOSE_UP operations."""
    most = most_operations(trace)
    chosen, held = list[int](), 0
    for rank in dict.fromkeys(ranks):
        held += most.get(rank, 0)
        if len(chosen) >= FEWEST and held > CLOSE_UP:
            break
        chosen.append(rank)
    return trace.of_ranks(chosen)


def most_operations(trace: Trace) -> dict[int, int]:
    """Return rank → its largest number of operations in a chosen step."""
    times, steps, most = trace.job.step_times, set(trace.steps), dict[int, int]()
    for rank, step, n in zip(times.rank, times.step, times.operations, strict=True):
        if step in steps:
            most[rank] = max(most.get(rank, 0), n)
    return most


def ranks_at_a_time(trace: Trace, step: int) -> Iterator[Trace]:
    """Yield the trace of some ranks each, in order, with at most as many operations in the step as are read together.

    Ranks whose rows share row groups stay together.
    """
    yield from (part for part, _ in parts_by_rank(replace(trace, steps=(step,)), AT_A_TIME))


def parts_by_rank(trace: Trace, operations: int) -> Iterator[tuple[Trace, int]]:
    """Yield (trace of some ranks, their operations in the chosen steps), in order, with about `operations` each.

    Ranks whose rows share row groups stay together.
    """
    of_rank, steps, times = dict[int, int](), set(trace.steps), trace.job.step_times
    for rank, step, n in zip(times.rank, times.step, times.operations, strict=True):
        if step in steps:
            of_rank[rank] = of_rank.get(rank, 0) + n
    place = {fragment: at for at, fragment in enumerate(trace.fragments)}

    def part(ranks: Iterable[int], fragments: Iterable[Path]) -> Trace:
        return replace(trace, only=frozenset(ranks), fragments=tuple(sorted(fragments, key=place.__getitem__)))

    ranks, fragments, held = list[int](), dict[Path, None](), 0
    for members, files in _separable(trace, sorted(of_rank)):
        more = sum(of_rank[rank] for rank in members)
        if ranks and held + more > operations:
            yield part(ranks, fragments), held
            ranks, fragments, held = [], {}, 0
        ranks += members
        fragments |= files
        held += more
    if ranks:
        yield part(ranks, fragments), held


def read_chosen(trace: Trace, names: Sequence[str], chosen: Callable[[Columns], Bools]) -> Columns:
    """Return these columns, `step` and `rank` of the rows that `chosen` selects among those of some ranks at a time."""
    parts = list[Columns]()
    for part, _ in parts_by_rank(trace, FEW):
        rows = read_columns(part, names)
        parts.append(rows.chosen(np.flatnonzero(chosen(rows))))
    return joined(parts or [read_columns(trace, names)])


def texts_counted(trace: Trace, names: Sequence[str], *, scopes: bool = False) -> dict[tuple[str, ...], int]:
    """Count the operations of the chosen steps, or the scopes, that have the same texts in the columns `names`.

    The most frequent come first; equally many are in the order of their texts, of which null's is empty.
    """
    counts = Counter[tuple[str, ...]]()
    for part, _ in parts_by_rank(trace, AT_A_TIME):
        rows = read_columns(part, list(dict.fromkeys(("kind", *names))))
        kept = np.flatnonzero(rows.is_any("kind", (KIND_NAMES[SCOPE],)) == scopes)
        key = np.zeros(len(kept), dtype=np.int64)
        for name in names:
            key = key * (len(rows.texts[name]) + 1) + rows.of[name][kept] + 1
        for code, count in zip(*(of.tolist() for of in np.unique(key, return_counts=True)), strict=True):
            texts, rest = [], code
            for name in reversed(names):
                rest, at = divmod(rest, len(rows.texts[name]) + 1)
                texts.append(rows.texts[name][at - 1] if at else "")
            counts[tuple(reversed(texts))] += count
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _separable(trace: Trace, ranks: list[int]) -> Iterator[tuple[list[int], dict[Path, None]]]:
    """Yield the smallest sets of ranks that can be read separately, with the files that hold them."""
    numbers = np.array(ranks)
    first, last, files = 0, -1, dict[Path, None]()

    def members() -> list[int]:
        return ranks[int(np.searchsorted(numbers, first)) : int(np.searchsorted(numbers, last, side="right"))]

    for low, high, fragment in ranks_together(trace, trace.steps):
        if files and low > last:
            yield members(), files
            first, files = low, {}
        first = first if files else low
        last = max(last, high)
        files[fragment] = None
    if files:
        yield members(), files


def _operations_of_some(trace: Trace, rows: Columns, step: int) -> Operations:
    return replace(operations_of(trace, rows, step), in_device_job=trace.job.has_device)


def _since(ops: Operations, origin_ns: int) -> Operations:
    later = ops.origin_ns - origin_ns
    return replace(ops, origin_ns=origin_ns, begin_ns=ops.begin_ns + later, start_ns=ops.start_ns + later)


def some_ranks_of_step(trace: Trace, step: int) -> Iterator[Columns]:
    """Yield a step's rows, some ranks at a time, in order."""
    for part in ranks_at_a_time(trace, step):
        rows = read_rows(part, [step])
        if np.any(np.diff(rows.of["rank"]) < 0):
            rows = rows.chosen(np.argsort(rows.of["rank"], kind="stable"))
        bounds = np.append(np.flatnonzero(np.diff(rows.of["rank"], prepend=-1)), len(rows))
        pieces = list(whole_parts(bounds, AT_A_TIME))
        for begin, end in pieces:
            yield rows if len(pieces) == 1 else rows.chosen(np.arange(bounds[begin], bounds[end]))


def _is_meeting(rows: Columns) -> Bools:
    scope = (rows.of["kind"] == SCOPE) & rows.is_any("name", (STEP_SCOPE,))
    return np.asarray(is_one_of(rows.of["kind"], (COLLECTIVE, SEND, RECV)) | scope)


def _without_unused_texts(rows: Columns) -> Columns:
    of, texts = dict(rows.of), dict(rows.texts)
    for name in ("lane", "name", "group"):
        present = rows.present(name)
        place = np.full(len(texts[name]) + 1, -1, dtype=of[name].dtype)
        place[present] = np.arange(len(present))
        of[name], texts[name] = place[of[name]], [rows.texts[name][code] for code in present]
    return Columns(of, texts)
