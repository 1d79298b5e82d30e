"""Bandwidth of process groups and links compared with their siblings, overlap of communication, matrix products' rates.

A transfer begins when its last member arrives, so a straggler slows none: members leave together, and whoever came last
has the shortest duration (timeline/collectives.py).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints, present
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_collectives_marked
from kair_engine.ranks import Rank
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.collectives import CollectiveKind, CollectivesResult, GroupTransfers, RankRates
from kair_engine.stats import known_median
from kair_engine.timeline.roles import role_codes, roles
from kair_engine.timeline.self_time import step_time_ns
from kair_engine.timeline.some_ranks import SomeRanks, some_ranks_each
from kair_engine.trace.model import Job, KairWarning, Trace, require_rank, require_steps
from kair_engine.views.communication_overlap import communication_and_covered_ns
from kair_engine.views.matrix_products import Products
from kair_engine.views.sibling_speeds import Comparison, compare, is_slow
from kair_engine.views.transfers import Transferred, Transfers

_MENTIONED_SHARE: Final = 0.01
"""A warning is given if transfers of unknown size take this share of the time of all transfers."""


def collectives(
    trace: Trace,
    *,
    group: str | None = None,
    kind: CollectiveKind | None = None,
    rank: int | None = None,
    by_rank: bool = False,
    limit: int = 40,
) -> CollectivesResult:
    """Return what communication and matrix products reach, over the chosen steps.

    Listed are at most `limit` groups: those whose name holds `group`, of this `kind`, that `rank` is in, where these
    are given; with `by_rank` every rank. All are compared in any case. Siblings of a group do transfers of the same
    kind and size among as many ranks, spread over as many hosts; where sizes are not known, calls of the same name.
    Peers of a rank have its role. Raises UsageError without a step, and for a `rank` that was not recorded.
    """
    require_steps(trace)
    if rank is not None:
        require_rank(trace, rank)
    trace = with_collectives_marked(trace)
    sums = _Sums(trace.job)
    deque(map(sums.add, some_ranks_each(trace, sums.transfers.add)), maxlen=0)
    rows = sums.transfers.rows(len(trace.steps))
    speeds = _Speeds.of(trace, sums.products)
    tests = sum(not np.isnan(row.p_value) for row in rows) + int((~np.isnan(speeds.comparison.p_value)).sum())
    step_us = step_time_ns(trace, synchronised=len(sums.transfers) > 0) / 1e3
    told = [_told(row, tests, step_us) for row in rows]
    chosen = [one for one in told if _is_asked_for(one, group, kind, rank)]
    rates = sums.rates(speeds, tests)
    communicating = [one for one in rates if one.overlap is not None]
    most = max(communicating, key=lambda one: one.exposed_us, default=None)
    return CollectivesResult(
        ranks=trace.job.ranks,
        steps=trace.steps,
        step_time_us=step_us,
        groups=tuple(sorted(chosen, key=lambda one: (not one.slow, -one.transfer_us_per_step))[:limit]),
        total_groups=len(chosen),
        compared=tests,
        overlap=_median([one.overlap for one in communicating if one.overlap is not None]),
        exposed_us=_median([one.exposed_us for one in communicating]),
        most_exposed_us=None if most is None else most.exposed_us,
        most_exposed_rank=None if most is None else most.rank,
        by_rank=tuple(one for one in rates if by_rank or one.rank == rank or one.products_slow),
        products=sums.products.result(limit) if len(sums.products) else None,
        warnings=(*_warnings(sums, told), *unnamed_collective_warnings(trace)),
    )


class _Sums:
    """Adds up steps as they pass."""

    def __init__(self, job: Job) -> None:
        self._ranks = np.array(job.ranks, dtype=np.int64)
        self._steps = np.zeros(len(self._ranks))
        """That each rank recorded."""
        self._communication_ns, self._covered_ns = np.zeros(len(self._ranks)), np.zeros(len(self._ranks))
        self.transfers = Transfers(job)
        self.products = Products(self._ranks)

    @property
    def communicates(self) -> bool:
        """Whether any rank does."""
        return bool(self._communication_ns.any())

    def add(self, seen: SomeRanks) -> None:
        """Take in what some ranks did."""
        place = np.searchsorted(self._ranks, seen.rank)
        communication, covered = communication_and_covered_ns(seen.ops)
        np.add.at(self._steps, place, 1)
        np.add.at(self._communication_ns, place, communication)
        np.add.at(self._covered_ns, place, covered)
        self.products.add(seen.ops, seen.step, place)
        self.transfers.learn(seen.ops)

    def rates(self, speeds: "_Speeds", tests: int) -> list[RankRates]:
        """Of every rank."""
        us = 1e3 * np.maximum(self._steps, 1)
        exposed = self._communication_ns - self._covered_ns
        slow = is_slow(speeds.comparison, tests)
        return [
            RankRates(
                rank=Rank(int(rank)),
                communication_us=float(self._communication_ns[at] / us[at]),
                waiting_us=float(self.transfers.waiting_ns[at] / us[at]),
                exposed_us=float(exposed[at] / us[at]),
                overlap=float(self._covered_ns[at] / total) if (total := self._communication_ns[at]) else None,
                product_tflop_per_s=_known(speeds.tflop_per_s[at]),
                product_ratio=_known(speeds.ratio[at]),
                product_p_value=_family_wise(float(speeds.comparison.p_value[at]), tests),
                products_slow=bool(slow[at]),
            )
            for at, rank in enumerate(self._ranks.tolist())
        ]


class _Speeds:
    """Return how fast each rank's matrix products are, and how that compares with its peers'."""

    def __init__(self, tflop_per_s: Floats, ratio: Floats, comparison: Comparison) -> None:
        self.tflop_per_s, self.ratio, self.comparison = tflop_per_s, ratio, comparison

    @classmethod
    def of(cls, trace: Trace, products: Products) -> "_Speeds":
        """Those of a job's products, by role."""
        ranks = len(products.ranks)
        unknown = np.full(ranks, np.nan)
        if not len(products):
            return cls(unknown, unknown, Comparison(unknown, np.zeros(ranks, dtype=bool)))
        role = role_codes(products.ranks, roles(trace))
        times = products.times(role)
        return cls(products.tflop_per_s(), 1 / known_median(times), _by_role(times, role))


def _by_role(times: Floats, role: Ints) -> Comparison:
    p_value, steady = np.full(len(role), np.nan), np.zeros(len(role), dtype=bool)
    for code in present(role).tolist():
        members = np.flatnonzero((role == code) & ~np.isnan(times).all(axis=0))
        found = compare(times[:, members])
        p_value[members], steady[members] = found.p_value, found.steady
    return Comparison(p_value, steady)


def _told(row: Transferred, tests: int, step_us: float) -> GroupTransfers:
    costs = row.ratio is not None and (1 - row.ratio) * row.ns_per_step / 1e3 > SMALLEST_SHARE * step_us
    alone = Comparison(np.array([row.p_value]), np.array([row.steady]))
    return GroupTransfers(
        group=row.link.group,
        kind=row.kind,
        ranks=row.link.ranks,
        members=row.link.members,
        hosts=None if row.hosts is None else len(row.hosts),
        size_class_bytes=None if row.size_class is None else 1 << row.size_class,
        message_bytes=row.message_bytes,
        calls=row.calls,
        transfer_us=row.transfer_ns / 1e3,
        transfer_us_per_step=row.ns_per_step / 1e3,
        algorithm_gb_per_s=row.algorithm_gb_per_s,
        bus_gb_per_s=row.bus_gb_per_s,
        siblings=row.siblings,
        ratio=row.ratio,
        p_value=_family_wise(row.p_value, tests),
        slow=bool(is_slow(alone, tests)[0]),
        differs=row.steady and bool(np.isnan(row.p_value)) and costs,
    )


def _is_asked_for(one: GroupTransfers, group: str | None, kind: CollectiveKind | None, rank: int | None) -> bool:
    named = group is None or group.lower() in (one.group or "").lower()
    return named and kind in (None, one.kind) and (rank is None or rank in one.ranks)


def _family_wise(p_value: float, tests: int) -> float | None:
    return None if np.isnan(p_value) else min(1.0, p_value * tests)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _warnings(sums: _Sums, rows: Sequence[GroupTransfers]) -> Iterator[KairWarning]:
    if not rows and sums.communicates:
        text = "no two members of a collective are recorded: it is unknown how much of its time is waiting"
        yield KairWarning("no_transfers", text)
    total = sum(one.transfer_us_per_step for one in rows)
    unsized = sum(one.transfer_us_per_step for one in rows if one.message_bytes is None and one.kind != "barrier")
    if unsized > _MENTIONED_SHARE * total:
        text = f"{unsized / total:.0%} of the time of transfers is of unknown size: times are compared, not bandwidths"
        yield KairWarning("sizes_not_recorded", text)
    missing = [one for one in rows if one.members > len(one.ranks)]
    if missing:
        text = f"members of {len({one.group for one in missing})} process groups are not recorded"
        yield KairWarning(
            "members_missing", f"{text}: their transfers may be shorter than shown, by the waiting for those"
        )
