"""Finds links that became slow within the recording, each by its own past, and groups that differ without a majority.

An edge of a pipeline is slow in a direction if all of its transfers are: one that queues behind another link's lets the
first of a step pass. Both directions of a link are one link. What is slow in one direction only, next to a link that
is slow in both, queues behind that: it follows, and is nobody's fault.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.change_points import Change, change_points, same_time, varying
from kair_engine.localize.links import (
    FEWEST_SIBLINGS,
    HEALTHY_SPREAD,
    SLOWER_BY,
    STEADY_STEPS,
    Link,
    LinkTime,
    SlowLink,
)
from kair_engine.localize.peers import Spread
from kair_engine.ranks import Rank

MOST_OF_LINKS, FEWEST_OF_ALL = 0.75, 3
"""If this share of a job's links, and at least three of them, became slow at one time, no single link did: what they
share, such as a network that others load, is reported as a change of the step."""


@dataclass(frozen=True)
class _Changed:
    """One direction of an edge, or a group, that became slow."""

    link: Link
    change: Change
    operator: str

    @property
    def rise_ns(self) -> float:
        return self.change.since - self.change.before


def changed_links(
    steps: Sequence[Mapping[Link, LinkTime]], numbers: Sequence[int], step_time_ns: float, p_below: float, share: float
) -> list[SlowLink]:
    """Return the links that take longer since some step than before, beyond chance, and cost `share` of the step.

    `numbers` are the steps'. The costliest links come first; what only follows from them is reported with them.
    """
    links = [link for link in (steps[0] if steps else ()) if all(link in step for step in steps)]
    if not links:
        return []
    changed = [
        _Changed(link, change, steps[change.begin][link].operator)
        for link, change in _changes(links, steps)
        if change.p_value * len(links) < p_below and change.factor > 1 + SLOWER_BY
    ]
    costly = [
        one for one in changed if one.rise_ns * (one.change.end - one.change.begin) > share * step_time_ns * len(steps)
    ]
    culprits, followers = _led(costly)
    if _is_of_all(culprits, links):
        return []
    return [
        SlowLink(
            link=lead.link,
            operator=lead.operator,
            own_ns=lead.change.since,
            expected_ns=lead.change.before,
            siblings=0,
            p_value=min(1.0, min(one.change.p_value for one in both) * len(links)),
            since=numbers[min(one.change.begin for one in both)],
            until=None if (end := max(one.change.end for one in both)) == len(steps) else numbers[end - 1],
            followers=(*(one.link for one in both[1:]), *(one.link for one in followers if _follows(one, both))),
        )
        for both in culprits
        for lead in both[:1]
    ]


def _changes(links: Sequence[Link], steps: Sequence[Mapping[Link, LinkTime]]) -> Iterator[tuple[Link, Change]]:
    """Of links the change of what they spend in all; of edges only where every transfer takes longer as well."""
    own = np.array([[step[link].own_ns for link in links] for step in steps])
    asked = varying(own, SLOWER_BY)
    changes = change_points(own[:, asked], Spread(HEALTHY_SPREAD, HEALTHY_SPREAD))
    for at, change in zip(asked.tolist(), changes, strict=True):
        link = links[at]
        if change is None:
            continue
        if link.group is not None or _all_take_longer([step[link].flights_ns for step in steps], change):
            yield link, change


def _all_take_longer(flights: Sequence[Floats], change: Change) -> bool:
    """Return whether even the least delayed call of a step takes longer, in the median of the steps of a change.

    If calls are alike, that is the shortest call of a step. If some are so small that the link hardly matters, it is
    the one that is least delayed compared with the same call of other steps. Steps may have different numbers of calls:
    only the calls that all of them have count.
    """
    calls = min(map(len, flights))
    of = np.stack([one[:calls] for one in flights])
    within = change.within(len(of))
    delays = (of - of.min(axis=0)).min(axis=1)
    of_call = max(change.before / max(calls, 1), 1.0)
    return _rise(of.min(axis=1), within) > SLOWER_BY * max(float(np.median(of[~within].min(axis=1))), 1.0) or (
        _rise(delays, within) > SLOWER_BY * of_call
    )


def _rise(values: Floats, within: Bools) -> float:
    return float(np.median(values[within]) - np.median(values[~within]))


def _led(changed: Sequence[_Changed]) -> tuple[list[list[_Changed]], list[_Changed]]:
    """(culprits, followers): each culprit is a link, its leading direction first, the costliest link first.

    Links that are slow in both directions are culprits, and those in one that share no rank with such at that time. The
    direction that leads is the one that became slow first; of two, that of the forward pass: to the higher rank.
    """
    of_ends: dict[frozenset[Rank], list[_Changed]] = {}
    for one in changed:
        key = frozenset(one.link.ranks) if one.link.group is None else frozenset()
        of_ends.setdefault(key, []).append(one)
    groups = [[one] for one in of_ends.pop(frozenset(), [])]
    links = [sorted(both, key=lambda one: (one.change.begin, one.link.ranks)) for both in of_ends.values()]
    two_way = [both for both in links if len(both) > 1]
    one_way = [both for both in links if len(both) == 1]
    following = [both for both in one_way if any(_follows(both[0], leads) for leads in two_way)]
    alone = [both for both in one_way if both not in following]
    culprits = sorted([*groups, *two_way, *alone], key=lambda both: -sum(one.rise_ns for one in both))
    return culprits, [both[0] for both in following]


def _follows(one: _Changed, leads: Sequence[_Changed]) -> bool:
    """Whether a direction shares a rank with a link that became slow at the same time."""
    return not set(one.link.ranks).isdisjoint(leads[0].link.ranks) and any(
        same_time(one.change, lead.change) for lead in leads
    )


def _is_of_all(culprits: Sequence[Sequence[_Changed]], links: Sequence[Link]) -> bool:
    every = {frozenset(link.ranks) for link in links}
    slow = {frozenset(one.link.ranks) for both in culprits for one in both}
    return len(slow) >= max(MOST_OF_LINKS * len(every), FEWEST_OF_ALL)


@dataclass(frozen=True)
class Differing:
    """Two or three links that do the same, one of which takes longer: which of them is usual is unknown."""

    slow: Link
    others: tuple[Link, ...]
    own_ns: float
    """A step, of the slow one."""
    other_ns: float
    """The same of the fastest of the others."""


def differing(steps: Sequence[Mapping[Link, LinkTime]], step_time_ns: float, share: float) -> Differing | None:
    """Return the largest difference between links of a family that is too small for a test, where it costs `share` of a
    step.

    In nearly all steps, as of links that are accused (links.py).
    """
    families: dict[tuple[int, ...], list[Link]] = {}
    for link, time in steps[0].items() if steps else ():
        if time.compared_ns > 0:
            families.setdefault(time.family, []).append(link)
    found: list[Differing] = []
    for of in families.values():
        if not 1 < len(of) < FEWEST_SIBLINGS or not all(link in step for step in steps for link in of):
            continue
        own = np.array([[step[link].compared_ns for link in of] for step in steps])
        order = np.argsort(-own.mean(axis=0), kind="stable")
        slow, fast = own[:, order[0]], own[:, order[-1]]
        steady = (slow > (1 + SLOWER_BY / 2) * fast).mean() > STEADY_STEPS
        lost = float(np.median(slow) - np.median(fast))
        if steady and np.median(slow) > (1 + SLOWER_BY) * np.median(fast) and lost > share * step_time_ns:
            others = tuple(of[at] for at in order[1:].tolist())
            found.append(Differing(of[int(order[0])], others, float(np.median(slow)), float(np.median(fast))))
    return max(found, key=lambda one: one.own_ns - one.other_ns, default=None)
