"""The steps of a job: their numbers, which are usable, and their times on devices.

Finds ranks that number their steps differently from the job, by time, because ranks of one host share a clock. A rank
that counts one higher, after a restart or its own warm-up, would seem a whole step late.

Collectives confirm this: ranks meet the others in the collectives of a step. A rank that works on after the last
collective of a step begins the next one late; by more than half a step, and it runs most of it while the others run the
following one.

Usable steps are complete, and recorded by most ranks.

If hosts run ahead, steps are timed on their devices. A mark on the host brackets the launches of a step. If nothing
makes the host wait for its device, the kernels run a launch queue later, most of them after the mark's end. The step
then lasts, on its device, from the end of the step before to the end of its own last operation.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace.model import NOT_RECORDED, KairWarning, StepTimes, listed, short_warning

_AT_ONCE: Final = 0.5
"""Two ranks that overlap for this share of a step run the same step."""
_AGREEING: Final = 0.9
"""Share of a rank's steps that must be off by the same number."""
_FEWEST: Final = 2
_LOOKED_AT: Final = 50

_Span = tuple[int, int, int]
"""Begin, end and number of a step."""


def counted_differently(times: StepTimes, hosts: Mapping[int, str]) -> dict[int, int]:
    """Return rank → how far its step numbers exceed those that most ranks of its host give the same steps."""
    spans: dict[int, list[_Span]] = defaultdict(list)
    for rank, step, begin, duration in zip(times.rank, times.step, times.begin_ns, times.duration_ns, strict=True):
        spans[rank].append((begin, begin + duration, step))
    of_host: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(spans):
        if rank in hosts:
            of_host[hosts[rank]].append(rank)
    return {rank: more for ranks in of_host.values() for rank, more in _off(ranks, spans).items()}


def renumbered(times: StepTimes, more: Mapping[int, int]) -> StepTimes:
    """Return the times with the steps' common numbers."""
    steps = tuple(step - more.get(rank, 0) for rank, step in zip(times.rank, times.step, strict=True))
    return replace(times, step=steps)


def renumbering_warnings(more: Mapping[int, int]) -> list[KairWarning]:
    """Return warnings about renumbered ranks."""
    by_number: dict[int, list[int]] = defaultdict(list)
    for rank, number in more.items():
        by_number[number].append(rank)
    return [
        short_warning(
            "steps_counted_differently",
            f"rank {listed(ranks)}: steps are numbered {abs(number)} {'higher' if number > 0 else 'lower'} than on "
            "the same host's other ranks, which run them at the same time; matched by time",
        )
        for number, ranks in sorted(by_number.items())
    ]


def _off(ranks: Sequence[int], spans: Mapping[int, Sequence[_Span]]) -> dict[int, int]:
    """Return the ranks of one host that are numbered differently from most."""
    first = sorted(spans[ranks[0]])
    found = {rank: off for rank in ranks if (off := _difference(sorted(spans[rank])[:_LOOKED_AT], first)) is not None}
    if not found:
        return {}
    usual = Counter(found.values()).most_common(1)[0][0]
    return {rank: off - usual for rank, off in found.items() if off != usual}


def _difference(steps: Sequence[_Span], others: Sequence[_Span]) -> int | None:
    """Return how much higher numbers in `steps` are than in simultaneous `others`; None if that is not constant."""
    begins = [begin for begin, _, _ in others]
    seen: Counter[int] = Counter()
    for begin, end, step in steps:
        at = bisect_right(begins, begin)
        for other_begin, other_end, other in others[max(at - 1, 0) : at + 1]:
            together = min(end, other_end) - max(begin, other_begin)
            if together > _AT_ONCE * max(end - begin, other_end - other_begin):
                seen[step - other] += 1
    if not seen:
        return None
    off, often = seen.most_common(1)[0]
    return off if often >= _FEWEST and often >= _AGREEING * seen.total() else None


_TIMES_AS_EVEN: Final = 2.0
"""Ends must be this many times more evenly apart under other numbers before a rank's own are replaced."""
_Ends = Mapping[int, int]
"""Step, as the rank numbers it → end of its last collective."""


def borne_out(more: Mapping[int, int], hosts: Mapping[int, str], fragments: Sequence[Path]) -> dict[int, int]:
    """Return those of `more` (rank → how much higher it seems to number its steps) that their collectives' ends
    confirm.

    They are compared with a rank of the same host that numbers its steps as most do. Ranks without communication are
    accepted.
    """
    usual = {hosts[rank]: rank for rank in sorted(hosts, reverse=True) if rank not in more}
    partner = {rank: usual[hosts[rank]] for rank in more if hosts.get(rank) in usual}
    ends = _ends({*partner, *partner.values()}, fragments)
    return {
        rank: off
        for rank, off in more.items()
        if rank not in partner or _is_so(ends.get(rank, {}), ends.get(partner[rank], {}), off)
    }


def _is_so(ends: _Ends, others: _Ends, more: int) -> bool:
    """Return whether the ends lie more evenly apart under the steps' common numbers than under the rank's own.

    Nearness does not count: equal host names do not prove one clock.
    """
    renumbered, own = (
        [end - others[step - off] for step, end in sorted(ends.items()) if step - off in others] for off in (more, 0)
    )
    return not own or not renumbered or _TIMES_AS_EVEN * _scatter(renumbered) < _scatter(own)


def _scatter(apart: Sequence[int]) -> float:
    """Return the median change from one step to the next: clocks drift, and are set."""
    return median(abs(then - one) for one, then in pairwise(apart)) if len(apart) > 1 else float("inf")


def _ends(ranks: set[int], fragments: Sequence[Path]) -> dict[int, dict[int, int]]:
    if not ranks:
        return {}
    import polars as pl  # for few jobs

    wanted = pl.col("rank").is_in(sorted(ranks)) & (pl.col("kind").cast(pl.String) == "collective")
    last = (pl.col("start_ns") + pl.col("duration_ns")).max()
    rows = pl.scan_parquet(list(fragments)).filter(wanted).group_by("rank", "step").agg(last.alias("end")).collect()
    found: dict[int, dict[int, int]] = {}
    for rank, step, end in rows.iter_rows():
        found.setdefault(rank, {})[step] = end
    return found


_COMPLETE_FROM: Final = 0.5
"""A step cut at the recording's edge has lost more than this share of its operations."""
_FEW: Final = 3
_Cell = tuple[int, int]
"""A rank, and one of its steps."""


@dataclass(frozen=True)
class UsableSteps:
    """The chosen steps in order, the ranks whose record of one is cut, and warnings about unused steps."""

    steps: tuple[int, ...]
    cut_off: dict[int, tuple[int, ...]]
    warnings: tuple[KairWarning, ...]


def usable_steps(
    times: StepTimes, ranks: tuple[int, ...], *, on_all: bool = False, truncated: Collection[int] = ()
) -> UsableSteps:
    """Return the steps that at least half the ranks recorded completely; the best covered ones if there are none.

    `on_all`: only those that all ranks did, because recordings begin at different times; if they have too few in
    common, those of as many ranks as have enough, if that is more than half of them. `truncated` ranks' files are cut
    off.
    """
    counts = dict(zip(zip(times.rank, times.step, strict=True), times.operations, strict=True))
    incomplete = incomplete_cells(counts, truncated)
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
    set_aside = _set_aside(complete_on, steps, counts, incomplete, of_ranks=len(ranks))
    return UsableSteps(steps, cut_off, (*set_aside, *_uneven(complete_on, steps, ranks)))


def incomplete_cells(counts: Mapping[_Cell, int], truncated: Collection[int] = ()) -> set[_Cell]:
    """Return the (rank, step) with fewer than half the operations of the rank's other steps that can be cut off.

    That is a rank's first and last step, of each sequence of steps that it recorded, and any step of a `truncated`
    file, whose text may have any order; in the middle, a step without operations. A step in the middle with few
    operations is of another kind: the rank waited for one that evaluates, or did less. A rank that does more from some
    step on has as many complete steps before. A rank with too few steps is compared with the other ranks' same step
    instead. (Not otherwise: the operations of a pipeline's stages differ by more than that.)
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
    few = set()
    for (rank, step), operations in counts.items():
        typical = typical_of_rank[rank]
        if len(of_rank[rank]) < _FEW and len(of_step[step]) >= _FEW:
            typical = max(typical, typical_of_step[step])
        if operations == 0 or operations < _COMPLETE_FROM * typical:
            few.add((rank, step))
    can_be_cut = {
        (rank, step)
        for rank, step in few
        if rank in truncated or not counts[rank, step] or not {(rank, step - 1), (rank, step + 1)} <= counts.keys()
    }
    return can_be_cut - _alike_in_a_row(counts, few)


def _alike_in_a_row(counts: Mapping[_Cell, int], few: AbstractSet[_Cell]) -> set[_Cell]:
    """Return the (rank, step) with few operations in a row of several of which none has half of another's."""
    found: set[_Cell] = set()
    for _, row in groupby(sorted(counts), key=lambda cell: (cell[0], cell in few)):
        cells = [cell for cell in row if cell in few]
        operations = [counts[cell] for cell in cells]
        if len(cells) >= _FEW and min(operations) >= max(_COMPLETE_FROM * max(operations), 1):
            found.update(cells)
    return found


def _typical(values: list[int]) -> float:
    """Return the upper median: of two steps, one complete and one cut, the complete one is typical."""
    return sorted(values)[len(values) // 2]


def _set_aside(
    complete_on: Mapping[int, AbstractSet[int]],
    steps: tuple[int, ...],
    counts: Mapping[_Cell, int],
    incomplete: AbstractSet[_Cell],
    *,
    of_ranks: int,
) -> list[KairWarning]:
    recorded_by: Counter[int] = Counter(step for _, step in counts)
    because: dict[str, list[int]] = defaultdict(list)
    for step in sorted(complete_on.keys() - set(steps)):
        cut = [counts[cell] for cell in incomplete if cell[1] == step]
        if any(cut):
            why = "cut off at the recording's edge"
        elif cut:
            why = "without operations"
        else:
            why = f"recorded by {recorded_by[step]} of {of_ranks} ranks"
        because[why].append(step)
    if not because:
        return []
    parts = [
        f"{'step' if len(gone) == 1 else 'steps'} {listed(gone)} set aside: {why}" for why, gone in because.items()
    ]
    return [short_warning("incomplete_steps", "; ".join(parts))]


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


AHEAD: Final = 0.05
"""Share of a step by which the device must be behind in the median step; else the host counts as waiting for it."""


def steps_on_devices(times: StepTimes) -> StepTimes | None:
    """Return the steps' times on the devices; None if hosts do not run ahead of these.

    A step without device operations keeps its host's time.
    """
    begin, length = list(times.begin_ns), list(times.duration_ns)
    behind, periods = list[int](), list[int]()
    before: tuple[int, int, int] | None = None
    cells = zip(times.rank, times.step, times.device_begin_ns, times.device_end_ns, strict=False)
    for (rank, step, first, over), at in sorted((cell, at) for at, cell in enumerate(cells)):
        if over == NOT_RECORDED:
            continue
        follows = before is not None and before[:2] == (rank, step - 1)
        began = before[2] if follows and before is not None else first
        # One step's last operation can end after the next one's, on another stream.
        ended = max(over, began)
        behind.append(ended - (times.begin_ns[at] + times.duration_ns[at]))
        begin[at], length[at] = began, ended - began
        periods += [ended - began] if follows else []
        before = rank, step, ended
    if not periods or _median(behind) <= AHEAD * _median(periods):
        return None
    return replace(times, begin_ns=tuple(begin), duration_ns=tuple(length))


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
