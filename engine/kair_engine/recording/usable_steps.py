"""Steps that an analysis may use: complete, and recorded by most ranks."""

from collections import defaultdict
from itertools import groupby
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace.model import KairWarning, StepTimes
from kair_engine.trace.warning_texts import listed, short_warning

# A step cut at the recording's edge has lost more than this share of its operations.
_COMPLETE_FROM: Final = 0.5
_FEW: Final = 3


@dataclass(frozen=True)
class UsableSteps:
    """The chosen steps in order, the ranks whose record of one is cut, and what had to be set aside."""

    steps: tuple[int, ...]
    cut_off: dict[int, tuple[int, ...]]
    warnings: tuple[KairWarning, ...]


def usable_steps(times: StepTimes, ranks: tuple[int, ...], *, on_all: bool = False) -> UsableSteps:
    """The steps that at least half the ranks recorded completely; the best covered ones where none is.

    `on_all`: only those that all ranks did, since recordings begin at other moments; where they have too few in common,
    those of as many ranks as have enough, if that is more than half of them.
    """
    counts = dict(zip(zip(times.rank, times.step, strict=True), times.operations, strict=True))
    incomplete = incomplete_cells(counts)
    complete_on: dict[int, set[int]] = {step: set() for _, step in counts}
    for rank, step in counts.keys() - incomplete:
        complete_on[step].add(rank)
    most = max(map(len, complete_on.values()), default=0)
    needed = max(min(len(ranks) / 2, most), 1)
    if on_all:
        covered = sorted((len(on) for on in complete_on.values()), reverse=True)
        enough = covered[_FEW - 1] if len(covered) >= _FEW else 0
        needed = max(enough if enough > len(ranks) / 2 else most, 1)
    steps = tuple(sorted(step for step, on in complete_on.items() if len(on) >= needed))
    if not steps and not counts:
        return UsableSteps((), {}, ())
    if not steps:
        text = "no step is complete on any rank; all of them are used"
        return UsableSteps(tuple(sorted(complete_on)), {}, (short_warning("incomplete_steps", text),))
    cut_off: dict[int, tuple[int, ...]] = {}
    for rank, step in sorted(incomplete):
        if step in steps:
            cut_off[step] = (*cut_off.get(step, ()), rank)
    set_aside = _set_aside(complete_on, steps, on_all=on_all)
    return UsableSteps(steps, cut_off, (*set_aside, *_uneven(complete_on, steps, ranks)))


def incomplete_cells(counts: dict[tuple[int, int], int]) -> set[tuple[int, int]]:
    """The (rank, step) with fewer than half the operations of the rank's other steps, but for several alike in a row.

    A rank that does more from some step on has as many whole steps before. What is cut off is an edge.
    A rank with too few steps to tell is held against the other ranks' same step instead. (Not otherwise: the
    stages of a pipeline differ in their numbers of operations by more than that.)
    """
    if min(counts.values(), default=1) >= max(_COMPLETE_FROM * max(counts.values(), default=0), 1):
        return set()  # nothing is below half of anything
    of_rank: dict[int, list[int]] = defaultdict(list)
    of_step: dict[int, list[int]] = defaultdict(list)
    for (rank, step), operations in counts.items():
        of_rank[rank].append(operations)
        of_step[step].append(operations)
    typical_of_rank = {rank: _typical(values) for rank, values in of_rank.items()}
    typical_of_step = {step: _typical(values) for step, values in of_step.items()}
    incomplete = set()
    for (rank, step), operations in counts.items():
        typical = typical_of_rank[rank]
        if len(of_rank[rank]) < _FEW and len(of_step[step]) >= _FEW:
            typical = max(typical, typical_of_step[step])
        if operations == 0 or operations < _COMPLETE_FROM * typical:
            incomplete.add((rank, step))
    return incomplete - _alike_in_a_row(counts, incomplete)


def _alike_in_a_row(counts: dict[tuple[int, int], int], few: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Of the (rank, step) with few operations those in a row of several of which none has half of another's."""
    found: set[tuple[int, int]] = set()
    for _, row in groupby(sorted(counts), key=lambda cell: (cell[0], cell in few)):
        cells = [cell for cell in row if cell in few]
        operations = [counts[cell] for cell in cells]
        if len(cells) >= _FEW and min(operations) >= max(_COMPLETE_FROM * max(operations), 1):
            found.update(cells)
    return found


def _typical(values: list[int]) -> float:
    """The upper median: with two steps, one whole and one cut, the whole one is typical."""
    return sorted(values)[len(values) // 2]


def _set_aside(complete_on: dict[int, set[int]], steps: tuple[int, ...], *, on_all: bool) -> list[KairWarning]:
    gone = sorted(complete_on.keys() - set(steps))
    if not gone:
        return []
    word = "step" if len(gone) == 1 else "steps"
    which = "not recorded by all ranks" if on_all else "on fewer than half the ranks"
    text = f"{word} {listed(gone)} set aside: cut off at the recording's edge, or {which}"
    return [short_warning("incomplete_steps", text)]


def _uneven(complete_on: dict[int, set[int]], steps: tuple[int, ...], ranks: tuple[int, ...]) -> list[KairWarning]:
    lacking: dict[int, list[int]] = {}
    for step in steps:
        for rank in ranks:
            if rank not in complete_on[step]:
                lacking.setdefault(rank, []).append(step)
    if not lacking:
        return []
    first = min(lacking)
    which = f"rank {listed(list(lacking))} (rank {first} lacks {listed(lacking[first])})"
    text = f"not every rank has every step whole: {which}"
    return [short_warning("uneven_steps", text)]
