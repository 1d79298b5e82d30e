"""Slow links: process groups and pipeline edges whose transfers take longer than those of their siblings.

Within one ring every member sees the same duration, so a slow link names the group, not a rank; of a send with its
receive it names the two ends. Where several slow links have one rank in common, that rank is named.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense
from kair_engine.frozen import dataclass
from kair_engine.localize.peers import Means, Spread, above_others
from kair_engine.ranks import Rank
from kair_engine.stats import median_by
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.collectives import ordinal
from kair_engine.trace.operations import COLLECTIVE, RECV, SEND

FEWEST_SIBLINGS = 4
"""This many links must do the same transfer, the scored one among them."""
SLOWER_BY = 0.15
STEADY_STEPS = 0.75
"""A slow link must be slower in more than this share of the steps."""
HEALTHY_SPREAD = 0.05
"""Healthy links of one kind differ by about this share of their time."""

Family = tuple[int, ...]


class Link(NamedTuple):
    """A process group (its text in the trace, and its members) or, without a text, an edge: sender and receiver."""

    group: str | None
    ranks: tuple[Rank, ...]

    @property
    def name(self) -> str:
        """The group's text, or `sender → receiver`."""
        return self.group if self.group is not None else f"rank {self.ranks[0]} → rank {self.ranks[1]}"


class OwnTime(NamedTuple):
    """One link's transfers in one step: own time τ summed, its siblings' medians summed, the slowest operator."""

    own_ns: float
    expected_ns: float
    siblings: int
    operator: str
    family: Family
    """Equal for links that can be compared: of one size, between the same roles."""


@dataclass(frozen=True)
class SlowLink:
    """A link that is slower than its siblings beyond chance; times are means per step."""

    link: Link
    operator: str
    own_ns: float
    expected_ns: float
    siblings: int
    p_value: float
    """Family-wise."""
    since: int | None = None
    """The step from which on it takes longer than before, where it is compared with its own past; then `own_ns` and
    `expected_ns` are means of the steps from then on, and of the others."""
    until: int | None = None
    """The step after which it takes as long as before again; None where it lasts."""
    followers: tuple[Link, ...] = ()
    """Its other direction, and links next to it that became slow with it in one direction only: these queue behind it.
    """

    @property
    def ends(self) -> frozenset[Rank]:
        """Its ranks, whatever the direction."""
        return frozenset(self.link.ranks)


@dataclass(frozen=True)
class Calls:
    """Per transfer of one step: its link, its operator, and what its siblings took."""

    link: Ints
    name: Ints
    own: Floats
    expected: Floats
    siblings: Ints
    family: Ints
    """(3 × transfers): size (0 for an edge) and the two roles."""
    is_known: Bools
    """Whether a group or an edge sets it apart from others."""


@dataclass(frozen=True)
class LinkTime:
    """All transfers of one link in one step, siblings or not."""

    own_ns: float
    """Their own time τ summed."""
    compared_ns: float
    """The same of those that another link has, too."""
    flights_ns: Floats
    """Of each call of an edge, from the send's begin to the receive's end; of a group nothing."""
    operator: str
    """On which it spent most."""
    family: Family


def link_times(sync: Synchronisation, calls: Calls | None) -> dict[Link, LinkTime]:
    """Return what every link spent in transfers in one step; process groups that hold all ranks of the step are no
    links.
    """
    if calls is None:
        return {}
    collectives, ops = sync.collectives, sync.collectives.ops
    is_edge = ops.kind[collectives.row[collectives.starts]] != COLLECTIVE
    kept = np.flatnonzero(is_edge | (calls.is_known & (collectives.sizes < len(ops.ranks))))
    if not len(kept):
        return {}
    link, first = _numbered(calls.link[kept])
    own, shared = calls.own[kept], calls.siblings[kept] > 1
    own_ns, compared_ns = np.bincount(link, weights=own), np.bincount(link, weights=np.where(shared, own, 0.0))
    operator = _slowest_operators(link, calls.name[kept], own)
    flights = np.split(*_flights_ns(sync, kept, link, is_edge[kept]))
    return {
        _link(sync, int(kept[first[at]])): LinkTime(
            own_ns=float(own_ns[at]),
            compared_ns=float(compared_ns[at]),
            flights_ns=flights[at],
            operator=ops.name_text[int(operator[at])],
            family=tuple(calls.family[:, kept[first[at]]].tolist()),
        )
        for at in range(len(first))
    }


def _flights_ns(sync: Synchronisation, kept: Ints, link: Ints, is_edge: Bools) -> tuple[Floats, Ints]:
    """(of calls on edges, link after link: from the send's begin to the receive's end; where the next link begins).

    No less than their own time. A buffered send is on its way from its begin on, whatever the receiver does meanwhile.
    """
    collectives, ops = sync.collectives, sync.collectives.ops
    order = np.argsort(link[is_edge], kind="stable")
    edges = kept[is_edge][order]
    rows = collectives.row[collectives.starts[edges][:, None] + np.arange(2)]
    rows = np.where(ops.kind[rows[:, :1]] == RECV, rows[:, ::-1], rows)
    offset = sync.clocks.offset_ns[ops.rank[rows]]
    flight = ops.end_ns[rows[:, 1]] - offset[:, 1] - (ops.start_ns[rows[:, 0]] - offset[:, 0])
    calls = np.bincount(link[is_edge], minlength=int(link.max()) + 1)
    return np.maximum(flight, sync.own_ns[edges].astype(float)), np.cumsum(calls)[:-1]


def own_times(sync: Synchronisation, calls: Calls | None, fewest: int = FEWEST_SIBLINGS) -> dict[Link, OwnTime]:
    """Return what every link with siblings, `fewest` with itself, spent in transfers itself in one step.

    Siblings of a transfer are the n-th of that operator on other links of the same size between the same roles
    (`calls_of` has their codes); pipeline stages reduce gradients of different sizes.
    """
    if calls is None:
        return {}
    kept = np.flatnonzero(calls.siblings >= fewest)
    if not len(kept):
        return {}
    link, first = _numbered(calls.link[kept])
    own, expected = (np.bincount(link, weights=of[kept]) for of in (calls.own, calls.expected))
    siblings = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(siblings, link, calls.siblings[kept] - 1)
    operator = _slowest_operators(link, calls.name[kept], (calls.own - calls.expected)[kept])
    return {
        _link(sync, int(kept[first[at]])): OwnTime(
            own_ns=float(own[at]),
            expected_ns=float(expected[at]),
            siblings=int(siblings[at]),
            operator=sync.collectives.ops.name_text[int(operator[at])],
            family=tuple(calls.family[:, kept[first[at]]].tolist()),
        )
        for at in range(len(first))
    }


def _numbered(codes: Ints) -> tuple[Ints, Ints]:
    """Return the codes numbered from 0 on, and where each occurs first."""
    _, first, numbered = np.unique(codes, return_index=True, return_inverse=True)
    return numbered.reshape(-1), first


def _slowest_operators(link: Ints, name: Ints, above: Floats) -> Ints:
    """Per link the operator (a code of `name`) on which it lost most to its siblings."""
    pair, first = _numbered(dense(np.stack((link, name))))
    lost = np.bincount(pair, weights=above)
    # Of each link the last in this order is the largest.
    order = np.lexsort((lost, link[first]))
    last = np.flatnonzero(np.diff(link[first][order], append=NONE))
    return np.asarray(name[first[order[last]]])


def slow_links(
    steps: Sequence[Mapping[Link, OwnTime]], step_time_ns: float, p_below: float, smallest: float
) -> list[SlowLink]:
    """Return the links whose time is over 15 % above their siblings' mean, beyond chance, and matters for the step."""
    of: dict[Link, list[OwnTime]] = {}
    for step in steps:
        for link, time in step.items():
            of.setdefault(link, []).append(time)
    families: dict[Family, list[Link]] = {}
    for link, times in of.items():
        families.setdefault(times[0].family, []).append(link)
    found = []
    for links in families.values():
        if len(links) < FEWEST_SIBLINGS:
            continue
        own = np.array([sum(time.own_ns for time in of[link]) for link in links])
        expected = np.array([sum(time.expected_ns for time in of[link]) for link in links])
        ratios, least_ns = _ratios([of[link] for link in links]), len(steps) * smallest * step_time_ns
        is_slow, chances = above_siblings(ratios, own, expected, p_below / len(families), least_ns)
        p_values = np.minimum(1.0, len(families) * len(links) * chances)
        for place in np.flatnonzero(is_slow):
            times = of[links[place]]
            found.append(
                SlowLink(
                    link=links[place],
                    operator=max(times, key=lambda time: time.own_ns - time.expected_ns).operator,
                    own_ns=float(own[place]) / len(steps),
                    expected_ns=float(expected[place]) / len(steps),
                    siblings=max(time.siblings for time in times),
                    p_value=float(p_values[place]),
                )
            )
    return sorted(found, key=lambda slow: slow.expected_ns - slow.own_ns)


def above_siblings(
    ratios: Floats, own_ns: Floats, expected_ns: Floats, p_below: float, least_ns: float
) -> tuple[Bools, Floats]:
    """(which of the links of one family are slow, the chance of each): `ratios` is (steps × links), times are sums."""
    _, chances = above_others(Means.of(ratios), Spread(HEALTHY_SPREAD, HEALTHY_SPREAD))
    costly = own_ns - expected_ns > least_ns
    steady = (ratios > 1 + SLOWER_BY / 2).mean(axis=0) > STEADY_STEPS
    beyond_chance = len(own_ns) * chances < p_below
    return np.asarray(beyond_chance & (own_ns > (1 + SLOWER_BY) * expected_ns) & costly & steady), chances


def _ratios(links: Sequence[Sequence[OwnTime]]) -> Floats:
    """Return what each link took relative to its siblings (steps × links), in as many steps as all have."""
    steps = min(map(len, links))
    return np.array([[time.own_ns / max(time.expected_ns, 1.0) for time in times[:steps]] for times in links]).T


def in_common(found: Sequence[SlowLink]) -> list[tuple[tuple[Rank, ...], tuple[SlowLink, ...]]]:
    """Slow links put together where they share ranks: (the shared ranks, the links), the costliest first."""
    clusters: list[tuple[tuple[Rank, ...], tuple[SlowLink, ...]]] = []
    for slow in found:
        for at, (shared, links) in enumerate(clusters):
            common = tuple(rank for rank in shared if rank in slow.link.ranks)
            if common:
                clusters[at] = common, (*links, slow)
                break
        else:
            clusters.append((slow.link.ranks, (slow,)))
    return clusters


def calls_of(sync: Synchronisation, role: Ints) -> Calls | None:
    """Return the transfers of a step by link, and what their siblings take; `role` is a code per rank of the step."""
    collectives, ops = sync.collectives, sync.collectives.ops
    if not len(collectives):
        return None
    first = collectives.row[collectives.starts]
    edge: Bools = ops.kind[first] != COLLECTIVE
    low, high = _ends(sync, role)
    sender, receiver = _ends(sync, np.arange(len(ops.ranks)))
    known = edge | (ops.group[first] != NONE)
    link = dense(np.stack((edge, np.where(edge, sender, ops.group[first]), np.where(edge, receiver, NONE))))
    family = np.stack((np.where(edge, 0, collectives.sizes), low, high))
    name = np.where(edge, NONE, ops.name[first])
    # Transfers without a group that sets them apart count as separate links without siblings.
    kind = dense(np.concatenate((family, [name, np.where(known, NONE, np.arange(len(first)))])))
    turn = ordinal(np.stack((link, kind)))
    cell = dense(np.stack((kind, turn)))
    own = sync.own_ns.astype(float)
    siblings = np.bincount(cell)[cell]
    return Calls(link, np.asarray(ops.name[first]), own, median_by(cell, own), siblings, family, known)


def _ends(sync: Synchronisation, value: Ints) -> tuple[Ints, Ints]:
    """Per transfer: of an edge the sender's and the receiver's value, of a group the lowest and the highest."""
    collectives, ops = sync.collectives, sync.collectives.ops
    of_member = value[ops.rank[collectives.row]]
    low = np.minimum.reduceat(of_member, collectives.starts)
    high = np.maximum.reduceat(of_member, collectives.starts)
    first, last = collectives.row[collectives.starts], collectives.starts + collectives.sizes - 1
    edge, sends = ops.kind[first] != COLLECTIVE, ops.kind[first] == SEND
    ends = of_member[collectives.starts], of_member[last]
    sender, receiver = np.where(sends, ends[0], ends[1]), np.where(sends, ends[1], ends[0])
    return np.where(edge, sender, low), np.where(edge, receiver, high)


def _link(sync: Synchronisation, instance: int) -> Link:
    collectives, ops = sync.collectives, sync.collectives.ops
    start = int(collectives.starts[instance])
    rows = collectives.row[start : start + int(collectives.sizes[instance])]
    ranks = ops.ranks[ops.rank[rows]]
    if ops.kind[rows[0]] != COLLECTIVE:
        return Link(None, tuple(ranks[np.argsort(ops.kind[rows] != SEND, kind="stable")].tolist()))
    # The group of an unnamed one is unknown: its ranks set it apart from others.
    return Link(ops.group_text.get(int(ops.group[rows[0]]), "unnamed"), tuple(sorted(ranks.tolist())))
