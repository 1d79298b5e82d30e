"""The contrast of places: do ranks differ by where they stand, in a process group, by device model, host or block?

Whoever differs in every step in the same order as the others of its place is no outlier among its peers, and no chance
either. What belongs to a place in a process group is the program's (a causal sequence cut in order, say), and nobody's
fault. A slower model of device, host or block of ranks is a culprit, though half of the ranks are of it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from kair_engine.arrays import Floats, Ints, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, PLACE_SHARE, Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.peers import Means, Spread, moderated
from kair_engine.localize.signals import Measured, signals_of
from kair_engine.ranks import as_positions
from kair_engine.results import SMALLEST_SHARE
from kair_engine.stats import TRIM, median, trimmed_mean
from kair_engine.timeline.kernel_families import OF_DATA, family_of
from kair_engine.trace.model import Job

MOST_WITHIN: Final = 0.5
"""Of what places differ by, the most that ranks of one place may differ by: else single ranks are slow."""
PlaceKind = Literal["group", "model", "host", "block"]
LEAST_SPREAD: Final = 0.03
"""The slowest place must differ from the fastest one by this share of the step. A healthy host is up to .023 slower
than another one (REAL_NOISE)."""
BLOCK_SIZES: Final = (8,)
"""Ranks a host has where none is named, besides half of the job."""
_FEWEST_IN_ORDER: Final = 5
"""Ranks of one group whose times rise from place to place: of fewer chance has one order in 60."""
_SECOND_OF_FIRST: Final = 0.4
"""In one such group the second slowest must take this part of what the slowest takes more: else one rank is slow."""
_LISTED: Final = re.compile(r"\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})+)\s*\]$")


@dataclass(frozen=True)
class Partition:
    """One way to divide the ranks into places."""

    kind: PlaceKind
    code: Ints
    """Per rank the number of its place."""
    names: tuple[str, ...]
    """Of process groups, or of each place."""

    @property
    def is_structure(self) -> bool:
        """Whether the program deals out work by these places."""
        return self.kind == "group"


@dataclass(frozen=True)
class Placement:
    """Places that differ beyond chance."""

    partition: Partition
    of_place_ns: tuple[float, ...]
    """What ranks of each place take beyond the fastest place, the mean over ranks and steps."""
    spent_ns: tuple[float, ...]
    """What they spend on the operator, or on their own work."""
    operator: str | None
    """The operator that makes up most of the difference, alone or with its family (`carried_together`); None where
    none does."""
    p_value: float
    lost_ns: float
    """By how much the slowest place exceeds the mean place, per step."""

    @property
    def of_rank_ns(self) -> Floats:
        """Per rank what its place takes beyond the fastest one."""
        return np.array(self.of_place_ns)[self.partition.code]

    def positions_of(self, place: int) -> Ints:
        """Return the ranks of a place."""
        return np.flatnonzero(self.partition.code == place)

    @property
    def slowest(self) -> Ints:
        """The ranks of the slowest place."""
        return self.positions_of(int(np.argmax(self.of_place_ns)))


def partitions(job: Job, excess: JobExcess) -> Iterator[Partition]:
    """Return every way in which the recording divides the ranks into places, each once."""
    seen: set[tuple[int, ...]] = set()
    for one in (*_of_models(job), *_of_hosts(excess), *_of_blocks(excess), *_of_groups(job, excess)):
        _, code = np.unique(one.code, return_inverse=True)
        key = tuple(code.tolist())
        if len(set(key)) > 1 and key not in seen:
            seen.add(key)
            yield Partition(one.kind, code.astype(np.int64), one.names)


def placement(job: Job, excess: JobExcess) -> Placement | None:
    """Return the division whose places differ most surely beyond chance; None where none does.

    The slowest place is compared with the fastest one by a moderated t (peers.py): the ranks of one place show how
    much ranks differ, with the same priors as everywhere. Of one group only, whose places have one rank each, the order
    of all ranks is what chance would have to bring about. Corrected for all pairs of places, and all divisions.
    """
    if len(excess.steps) < FEWEST_STEPS or len(np.unique(excess.role)) > 1:
        return None
    every = list(partitions(job, excess))
    found = [of for one in every if (of := _compared(one, excess, len(every))) is not None]
    return min(found, key=lambda one: (one.p_value, not one.partition.is_structure), default=None)


def _compared(partition: Partition, excess: JobExcess, tried: int) -> Placement | None:
    own = signals_of(excess, Measured())[0]
    means, code = Means.of(own.above_ns), partition.code
    sizes = np.bincount(code)
    of_place = np.bincount(code, weights=means.mean_ns) / sizes
    low, high = int(np.argmin(of_place)), int(np.argmax(of_place))
    apart = float(of_place[high] - of_place[low])
    within = max(float(np.ptp(means.mean_ns[code == place])) for place in range(len(sizes)))
    if apart < LEAST_SPREAD * excess.step_time_ns or within > MOST_WITHIN * apart:
        return None
    if sizes.max() == 1:
        chance = _of_order(means.mean_ns, code)
    elif sizes.min() == 1:
        return None
    else:
        df = len(code) - len(sizes)
        squares = float(((means.mean_ns - of_place[code]) ** 2).sum())
        noise = np.array([float(median(means.variance))])
        spread = Spread(float(median(own.usual_ns)), float(median(own.wide_ns)))
        scale = 1 / sizes[low] + 1 / sizes[high]
        variance = np.maximum(squares / df, noise)
        _, chances = moderated(np.array([apart]), variance, df, scale, noise, spread)
        chance = float(chances[0]) * len(sizes) * (len(sizes) - 1)
    p_value = chance * tried / PLACE_SHARE
    if p_value >= FALSE_ALARM_RATE:
        return None
    operator, spent = _carried_by(excess, code, apart)
    beyond = of_place - of_place[low]
    lost = float(of_place[high] - np.average(of_place, weights=sizes))
    return Placement(partition, tuple(beyond.tolist()), tuple(spent.tolist()), operator, min(p_value, 1.0), lost)


def _of_order(mean_ns: Floats, code: Ints) -> float:
    """Return the chance that ranks rise from the first place to the last as they do; 1 where they do not."""
    ordered = mean_ns[np.argsort(code)]
    steps = np.diff(ordered)
    first, second = np.sort(ordered - ordered.min())[::-1][:2]
    if len(ordered) < _FEWEST_IN_ORDER or not ((steps > 0).all() or (steps < 0).all()):
        return 1.0
    return 2.0 / float(np.prod(np.arange(1.0, len(ordered) + 1))) if second > _SECOND_OF_FIRST * first else 1.0


_MOST: Final = 0.5
"""Of the difference between places that one operator must make up to be named."""


def _carried_by(excess: JobExcess, code: Ints, apart_ns: float) -> tuple[str | None, Floats]:
    """Return the operator that makes up most of the difference, and what each place spends on it or on its own work."""
    sizes = np.bincount(code)

    def by_place(values: Floats) -> Floats:
        return np.asarray(np.bincount(code, weights=values) / sizes)

    more: dict[str, dict[str, Floats]] = {}
    spent: dict[str, Floats] = {}
    for name in excess.operators:
        per_step, typical = excess.operator_ns(name)
        above = trimmed_mean(per_step, TRIM)
        together = carried_together(name)
        more.setdefault(together, {})[name] = by_place(above)
        spent[together] = spent.get(together, 0.0) + by_place(above + typical)
    apart = {together: float(np.ptp(sum(of_place.values()))) for together, of_place in more.items()}
    most = max(apart, key=lambda one: apart[one], default=None)
    if most is None or apart[most] < _MOST * apart_ns:
        work = np.delete(excess.every_work_ns, CLASSES.index("communication"), axis=1)
        return None, by_place(work.sum(axis=1).mean(axis=0))
    return max(more[most], key=lambda name: float(np.ptp(more[most][name]))), spent[most]


def carried_together(operator: str) -> str:
    """Return the family whose operators do the same work forward and backward, `attention`; else the operator.

    What differs by place in a process group are lengths, tokens and rows: all operators of a family have them alike.
    """
    family = family_of(operator)
    return family if family in OF_DATA else operator


def without_places(anomalies: Sequence[Anomaly], found: Placement, excess: JobExcess) -> tuple[Anomaly, ...]:
    """Return the anomalies without those that a place in a process group explains; of others the slow side in theirs.

    A rank that takes notably longer than the others of its place stays accused.
    """
    code, above = found.partition.code, _above_place(found, excess)
    if found.partition.is_structure:
        notable = SMALLEST_SHARE * excess.step_time_ns
        return tuple(one for one in anomalies if any(above[rank] > notable for rank in one.positions))
    slow = _slow_side(found)
    positions = as_positions(np.flatnonzero(np.isin(code, slow)))
    if any(set(positions) == set(one.positions) for one in anomalies):
        return tuple(anomalies)
    own = zero_for_nan(excess.by_step_ns)
    fast = np.setdiff1d(np.arange(len(code)), positions)
    lost = [
        float((trimmed_mean(own[:, row], TRIM)[list(positions)].mean()) - median(trimmed_mean(own[:, row], TRIM)[fast]))
        for row in range(len(CLASSES))
    ]
    row = int(np.argmax(lost))
    group = Anomaly("group", positions, row, found.p_value, lost[row])
    return group, *(one for one in anomalies if not set(one.positions) <= set(positions))


def _slow_side(found: Placement) -> Ints:
    """Return the places on the upper side of the widest gap between places."""
    order = np.argsort(found.of_place_ns)
    gaps = np.diff(np.array(found.of_place_ns)[order])
    return np.asarray(order[int(np.argmax(gaps)) + 1 :])


def _above_place(found: Placement, excess: JobExcess) -> Floats:
    """Return per rank how much longer it takes than the median of the others of its place; 0 where it is alone."""
    own, code = trimmed_mean(zero_for_nan(excess.by_step_ns).sum(axis=1), TRIM), found.partition.code
    result = np.zeros(len(own))
    for rank in range(len(own)):
        others = np.flatnonzero((code == code[rank]) & (np.arange(len(own)) != rank))
        if len(others):
            result[rank] = own[rank] - float(np.median(own[others]))
    return result


def _of_models(job: Job) -> Iterator[Partition]:
    known = [job.identity[rank].device.model if rank in job.identity else None for rank in job.ranks]
    names = sorted({one for one in known if one is not None})
    if len(names) > 1 and None not in known:
        yield Partition("model", np.array([names.index(str(one)) for one in known]), tuple(names))


def _of_hosts(excess: JobExcess) -> Iterator[Partition]:
    if excess.host is not None and (excess.host >= 0).all():
        yield Partition("host", excess.host, ())


def _of_blocks(excess: JobExcess) -> Iterator[Partition]:
    """Where no host is named: launchers number the ranks of one host in a row."""
    count = len(excess.ranks)
    if excess.host is not None and (excess.host >= 0).all():
        return
    for size in dict.fromkeys((*BLOCK_SIZES, count // 2)):
        if size > 1 and count % size == 0 and count > size:
            yield Partition("block", np.arange(count) // size, ())


def _of_groups(job: Job, excess: JobExcess) -> Iterator[Partition]:
    """Process groups of one size and one stride that cover all ranks; blocks of ranks in a row are no places.

    Ranks in a row at one place are what hosts, replicas and halves look like: what they differ by need not be dealt out
    by the program.
    """
    place = {int(rank): at for at, rank in enumerate(excess.ranks.tolist())}
    # Several groups may have the same ranks: the last one is the most special.
    families: dict[tuple[int, ...], dict[tuple[int, ...], str]] = {}
    for text, ranks in _groups(excess, job.group_names).items():
        if set(ranks) <= set(place):
            families.setdefault(tuple(np.diff(ranks).tolist()), {})[ranks] = text
    for groups in families.values():
        members = [rank for ranks in groups for rank in ranks]
        if len(members) != len(place) or set(members) != set(place):
            continue
        code = np.zeros(len(place), dtype=np.int64)
        for ranks in groups:
            code[[place[rank] for rank in ranks]] = np.arange(len(ranks))
        names = {job.group_names.get(text) or text.partition(" ")[0] for text in groups.values()}
        if len(groups) == 1 or np.count_nonzero(np.diff(code)) + 1 > len(set(code.tolist())):
            yield Partition("group", code, (names.pop(),) if len(names) == 1 else ())


def _groups(excess: JobExcess, names: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    texts = dict.fromkeys((*names, *(text for step in excess.steps for text in sorted(step.groups))))
    return {
        text: tuple(int(rank) for rank in listed[1].split(","))
        for text in texts
        if (listed := _LISTED.search(text)) is not None
    }
