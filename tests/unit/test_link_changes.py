"""A link is compared with its own past, both directions as one; what queues behind it is no culprit."""

import numpy as np
import pytest

from kair_engine.localize.link_changes import changed_links, differing
from kair_engine.localize.links import Link, LinkTime
from kair_engine.ranks import Rank

STEPS, ONSET = 14, 6
STEP_NS = 1e9
Times = dict[Link, LinkTime]


def edge(sender: int, receiver: int) -> Link:
    return Link(None, (Rank(sender), Rank(receiver)))


def group(*ranks: int) -> Link:
    return Link(str(list(ranks)), tuple(map(Rank, ranks)))


def took(each_ms: float, *, calls: int = 12, first_ms: float | None = None, step: int = 0) -> LinkTime:
    """So many transfers of one length, but the first one, which may be its own; a percent of noise."""
    flights = np.full(calls, each_ms * (1 + (step % 3 - 1) / 100) * 1e6)
    if first_ms is not None:
        flights[0] = first_ms * 1e6
    own = float(flights.sum())
    return LinkTime(own, own, flights, "send", (0, 0, 1))


def steps_of(slow: dict[Link, tuple[float, float | None]], links: list[Link], until: int = STEPS) -> list[Times]:
    """Every link takes 2 ms; from ONSET to `until` some take what `slow` says: each call, and the first of a step."""
    result = []
    for step in range(STEPS):
        is_slow = ONSET <= step < until
        result.append(
            {
                link: took(*((slow[link][0],) if is_slow and link in slow else (2.0,)), step=step)
                if link not in slow or slow[link][1] is None or not is_slow
                else took(slow[link][0], first_ms=slow[link][1], step=step)
                for link in links
            }
        )
    return result


PIPELINE = [edge(0, 1), edge(1, 0), edge(1, 2), edge(2, 1), edge(2, 3), edge(3, 2)]


def changed(steps: list[Times]) -> list[tuple[str, int | None, int | None, list[str]]]:
    found = changed_links(steps, range(100, 100 + STEPS), STEP_NS, 0.0005, 0.01)
    return [(one.link.name, one.since, one.until, [link.name for link in one.followers]) for one in found]


def test_both_directions_are_one_link_and_what_queues_behind_it_follows() -> None:
    slow: dict[Link, tuple[float, float | None]] = {
        edge(2, 3): (70, None),
        edge(3, 2): (70, None),
        edge(2, 1): (75, None),
        edge(1, 2): (75, 2.0),
    }
    assert changed(steps_of(slow, PIPELINE)) == [("rank 2 → rank 3", 106, None, ["rank 3 → rank 2", "rank 2 → rank 1"])]


def test_a_link_that_recovers_has_its_last_slow_step() -> None:
    slow: dict[Link, tuple[float, float | None]] = {edge(0, 1): (40, None), edge(1, 0): (40, None)}
    assert changed(steps_of(slow, PIPELINE, until=11)) == [("rank 0 → rank 1", 106, 110, ["rank 1 → rank 0"])]


def test_two_slow_links_are_two() -> None:
    slow: dict[Link, tuple[float, float | None]] = dict.fromkeys(PIPELINE[:2], (70, None))
    slow |= dict.fromkeys(PIPELINE[4:], (50, None))
    assert [one[0] for one in changed(steps_of(slow, PIPELINE))] == ["rank 0 → rank 1", "rank 2 → rank 3"]


def test_a_link_that_is_slow_in_one_direction_alone_is_named_by_it() -> None:
    assert changed(steps_of({edge(1, 2): (40, None)}, PIPELINE)) == [("rank 1 → rank 2", 106, None, [])]


def test_the_only_link_is_compared_with_its_past_too() -> None:
    only = [edge(0, 1), edge(1, 0)]
    slow: dict[Link, tuple[float, float | None]] = dict.fromkeys(only, (40, None))
    assert changed(steps_of(slow, only)) == [("rank 0 → rank 1", 106, None, ["rank 1 → rank 0"])]


@pytest.mark.parametrize("each_ms", [2.0, 2.2, 1.0])
def test_what_changes_little_or_becomes_faster_is_none(each_ms: float) -> None:
    assert changed(steps_of(dict.fromkeys(PIPELINE[2:4], (each_ms, None)), PIPELINE)) == []


def test_a_change_that_costs_next_to_nothing_is_none() -> None:
    steps = steps_of(dict.fromkeys(PIPELINE[2:4], (20.0, None)), PIPELINE)
    assert changed_links(steps, range(STEPS), 1e12, 0.0005, 0.01) == []


def test_a_network_that_is_slow_for_all_links_at_once_is_no_link() -> None:
    assert changed(steps_of(dict.fromkeys(PIPELINE, (40, None)), PIPELINE)) == []


def test_transfers_that_vary_from_step_to_step_changed_nothing() -> None:
    random = np.random.default_rng(3)
    steps = [
        {link: took(float(of)) for link, of in zip(PIPELINE, step, strict=True)}
        for step in 2 * random.lognormal(0, 0.5, (STEPS, 6))
    ]
    assert changed(steps) == []


def test_of_two_groups_the_slower_one_is_told_with_its_sibling() -> None:
    pair = [group(0, 1, 2, 3), group(4, 5, 6, 7)]
    steps = [{pair[0]: took(2.0, step=step), pair[1]: took(6.0, step=step)} for step in range(STEPS)]
    found = differing(steps, STEP_NS, 0.01)
    assert found is not None
    assert (found.slow, found.others) == (pair[1], (pair[0],))
    assert (round(found.own_ns / 1e6), round(found.other_ns / 1e6)) == (72, 24)


@pytest.mark.parametrize(("siblings", "slower_ms", "step_ns"), [(2, 2.1, STEP_NS), (2, 6.0, 1e11), (5, 6.0, STEP_NS)])
def test_alike_groups_cheap_differences_and_families_with_a_majority_are_not_open(
    siblings: int, slower_ms: float, step_ns: float
) -> None:
    links = [group(2 * at, 2 * at + 1) for at in range(siblings)]
    steps = [{link: took(slower_ms if link == links[0] else 2.0) for link in links} for _ in range(STEPS)]
    assert differing(steps, step_ns, 0.01) is None
