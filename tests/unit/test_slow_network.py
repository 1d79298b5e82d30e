"""A host whose transfers are delivered far slower than other hosts' is known by its rates; steps take 100 ms."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMMUNICATION, COMPUTE, job, nothing

from kair_engine.localize.excess import JobExcess
from kair_engine.ranks import Rank
from kair_engine.results.triage import Finding
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.model import Job, SentToHost, StepTimes, Trace
from kair_engine.triage.slow_network import faster_transfers, network_price, slow_networks, without_slow_networks

STEP_NS = 100e6
MB, GB = 1e6, 1e9
SLOW, USUAL = 0.1 * GB, 2 * GB


def trace_of(sent: dict[int, list[SentToHost]], hosts: dict[int, str]) -> Trace:
    steps = (0, 1)
    of = Job(
        name="job",
        source="",
        format="kineto",
        world_size=len(sent),
        ranks=tuple(map(Rank, sorted(sent))),
        hosts=hosts,
        layout=None,
        device=None,
        has_device=False,
        absolute_time=True,
        steps=steps,
        step_times=StepTimes((), (), (), (), ()),
        operations=0,
        warnings=(),
        sent={rank: tuple(of_rank) for rank, of_rank in sent.items()},
    )
    return Trace(of, (), steps)


def to(
    own: int,
    peer: int,
    bytes_per_s: float,
    size: float = 2 * MB,
    again: float = 0,
    round_trip_ms: float | None = None,
    queued_ms: float | None = None,
    busy_ms: float | None = None,
) -> SentToHost:
    told = (None if of is None else of * 1e6 for of in (round_trip_ms, queued_ms, busy_ms))
    return SentToHost(f"10.0.0.{own}", f"10.0.0.{peer}", 5, size, bytes_per_s, again, *told)


def found(
    sent: dict[int, list[SentToHost]],
    hosts: dict[int, str] | None = None,
    asleep_ns: dict[int, float] | None = None,
    steps: int = 8,
    processor: ProcessorTimes | None = None,
) -> list[Finding]:
    """Each rank on a host of its own, unless it is said otherwise."""
    trace = trace_of(sent, {rank: f"host{rank}" for rank in sent} if hosts is None else hosts)
    asleep = np.array([(asleep_ns or {}).get(rank, 0.0) for rank in sorted(sent)])
    return list(slow_networks(trace, waiting(len(sent), steps=steps), STEP_NS, asleep, processor))


def waiting(ranks: int, own: float = 40, steps: int = 8) -> JobExcess:
    """Ranks that work for `own` percent of the step."""
    work = np.zeros((4, ranks))
    work[COMPUTE], work[COMMUNICATION] = own, 90
    return job(nothing(steps, ranks), work=work)


def test_of_two_hosts_the_one_whose_transfers_are_slow_is_named() -> None:
    (one,) = found({0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW, again=3)]})
    assert (one.cause, one.pattern, one.ranks, one.hosts) == ("communication", "persistent", (1,), ("host1",))
    # 2 MB at 0.1 GB/s take 20 ms, at 2 GB/s 1 ms.
    assert one.time_lost_us_per_step == pytest.approx(19_000)
    (shown,) = one.evidence
    assert shown.kind == "slow_network"
    assert shown.figures == pytest.approx(
        {
            "bytes_per_step": 2 * MB,
            "bytes_per_s": SLOW,
            "usual_bytes_per_s": USUAL,
            "delivering_us_per_step": 20_000,
            "retransmitted_per_step": 3,
            "receives": 0,
        }
    )


@pytest.mark.parametrize(("lacked_ms", "lost_us"), [(5, 14_000), (15, None)])
def test_what_waits_for_a_receiver_without_a_core_is_no_slow_network(lacked_ms: float, lost_us: float | None) -> None:
    """Of 19 ms, in the mean over the steps of which it was measured."""
    nothing = np.zeros((2, 2))
    lacked = np.array([[lacked_ms * 1e6, np.nan], [30e6, 30e6]])
    measured = ProcessorTimes(np.arange(2), np.arange(2), nothing, nothing, nothing, lacked, nothing, nothing)
    told = found({0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]}, processor=measured)
    assert [one.time_lost_us_per_step for one in told if one.ranks] == (
        [] if lost_us is None else pytest.approx([lost_us])
    )


def test_in_few_steps_nobody_is_accused_of_a_slow_network() -> None:
    """Of two ranks one is slowest throughout by chance in so few."""
    (one,) = found({0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]}, steps=3)
    assert (one.cause, one.ranks, one.pattern) == ("exposed_communication", (), "job_wide")


@pytest.mark.parametrize(("asleep_ms", "lost_us"), [(5, 14_000), (15, None)])
def test_what_waits_for_a_rank_that_stands_still_is_no_slow_network(asleep_ms: float, lost_us: float | None) -> None:
    """Of the 19 ms that slow transfers take longer, the receiver stood still for so many; the sender does not count."""
    sent = {0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]}
    told = found(sent, asleep_ns={0: asleep_ms * 1e6, 1: 30e6})
    assert [one.time_lost_us_per_step for one in told] == ([] if lost_us is None else pytest.approx([lost_us]))


@pytest.mark.parametrize(
    "sent",
    [
        {0: [to(0, 1, USUAL)], 1: [to(1, 0, USUAL / 1.9)]},
        {0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW, size=0.4 * MB)]},
        {0: [to(0, 1, SLOW)], 1: [to(1, 0, SLOW)]},
        {0: [], 1: [to(1, 0, SLOW)]},
        {0: [], 1: []},
    ],
    ids=["not that much slower", "it costs little", "both alike", "nothing to compare with", "nothing was asked"],
)
def test_nobody_is_named_without_that(sent: dict[int, list[SentToHost]]) -> None:
    assert not any(one.ranks for one in found(sent))


def test_transfers_take_no_longer_than_something_was_on_its_way() -> None:
    """2 MB at 0.1 GB/s would take 20 ms, but all was acknowledged sooner; at 2 GB/s they take 1."""

    def lost_us(*windows: SentToHost) -> list[float]:
        return [one.time_lost_us_per_step for one in found({0: [to(0, 1, USUAL, busy_ms=1)], 1: list(windows)})]

    assert lost_us(to(1, 0, SLOW, busy_ms=12)) == pytest.approx([11_000])
    assert lost_us(to(1, 0, SLOW, busy_ms=5)) == []
    # Of a window of an earlier version it is not known.
    assert lost_us(to(1, 0, SLOW, busy_ms=5), to(1, 0, SLOW)) == pytest.approx([19_000])


def test_what_queues_on_the_way_tells_how_long_transfers_take_though_their_rate_is_an_old_one() -> None:
    """2 MB at 2 GB/s would take 1 ms; for 30 ms and more some were on their way, and queued there for 2, or 0.9."""

    def ring(queued_ms: float, of_host_1: float = USUAL, busy_ms: float = 34) -> list[Finding]:
        of_host = ((USUAL, 30), (of_host_1, busy_ms), (USUAL, 30))
        sent = {
            own: [to(own, (own + 1) % 3, rate, queued_ms=queued_ms, busy_ms=busy)]
            for own, (rate, busy) in enumerate(of_host)
        }
        return found(sent)

    (one,) = ring(2)
    assert (one.cause, one.ranks) == ("exposed_communication", ())
    assert one.time_lost_us_per_step == pytest.approx(34_000)
    figures = one.evidence[0].figures
    assert figures["delivering_us_per_step"] == pytest.approx(34_000)
    assert figures["bytes_per_s"] == pytest.approx(2 * MB / 0.034)
    assert figures["fastest_bytes_per_s"] == pytest.approx(2 * MB / 0.03)
    assert figures["queued_us"] == 2000
    assert ring(0.9) == []
    # Nor does it tell whose network is slow: at 0.3 GB/s what host 1 sends would take 7 ms, at 0.1 GB/s 20.
    assert [one.ranks for one in ring(2, 0.3 * GB)] == [()]
    assert [one.ranks for one in ring(2, SLOW)] == [(1,)]
    # Where others' are on their way for as long, their rates are the old ones.
    assert [one.ranks for one in ring(2, SLOW, busy_ms=32)] == [()]


def test_what_queues_on_the_way_does_not_wait_for_its_receiver() -> None:
    (one,) = found({0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW, queued_ms=2, busy_ms=20)]}, asleep_ns={0: 15e6, 1: 0})
    assert one.ranks == (1,) and one.time_lost_us_per_step == pytest.approx(19_000)
    of_all = {rank: [to(rank, 1 - rank, SLOW, queued_ms=2, busy_ms=20)] for rank in range(2)}
    (one,) = found(of_all, asleep_ns={0: 15e6, 1: 15e6})
    assert one.cause == "exposed_communication" and one.time_lost_us_per_step == pytest.approx(20_000)


def test_hosts_that_send_little_are_nothing_to_compare_with() -> None:
    """In a ring all send as slowly; the rates of a few packets beside that differ by chance."""
    ring = {rank: [to(rank, (rank + 1) % 3, SLOW)] for rank in range(3)}
    little = {0: [to(0, 2, USUAL, size=2000)], 1: [to(1, 0, USUAL, size=2000)], 2: [to(2, 1, SLOW, size=2000)]}
    (one,) = found({rank: ring[rank] + little[rank] for rank in range(3)})
    assert (one.cause, one.ranks) == ("exposed_communication", ())


@pytest.mark.parametrize(("others_ms", "accused"), [(0.3, True), (3.0, False), (None, True)])
def test_who_is_acknowledged_no_later_than_others_has_no_slower_network(others_ms: float | None, accused: bool) -> None:
    """In a ring of four: what host 1 sends, and what is sent to it, is acknowledged after 4 ms."""
    late = {(1, 2), (0, 1)}
    ring = {
        own: [to(own, peer, SLOW if own == 1 else USUAL, round_trip_ms=4 if (own, peer) in late else others_ms)]
        for own, peer in ((0, 1), (1, 2), (2, 3), (3, 0))
    }
    assert [one.ranks for one in found(ring) if one.ranks] == ([(1,)] if accused else [])
    # Where it is acknowledged late, that its receiver stands still is not what it waits for.
    stands_still = [one for one in found(ring, asleep_ns={2: 10e6}) if one.ranks]
    assert [one.time_lost_us_per_step for one in stands_still] == (
        pytest.approx([19_000] if others_ms else [9000]) if accused else []
    )


def test_all_ranks_of_a_host_share_its_network() -> None:
    """Two connections of two ranks; a small one is fast, as small ones are."""
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    sent = {
        0: [to(0, 2, USUAL)],
        1: [to(0, 2, USUAL)],
        2: [to(2, 0, SLOW), to(2, 0, 8 * USUAL, size=0.01 * MB)],
        3: [to(2, 0, SLOW)],
    }
    (one,) = found(sent, hosts)
    assert (one.pattern, one.ranks) == ("group", (2, 3))
    assert one.evidence[0].figures["bytes_per_s"] == SLOW


def test_what_is_slow_in_some_windows_is_no_slow_network() -> None:
    """Of 25 steps the median counts."""
    usual = [to(0, 1, USUAL)]
    slow, fast = to(1, 0, SLOW), to(1, 0, USUAL)
    assert found({0: usual, 1: [slow, slow, fast, fast, fast]}) == []
    (one,) = found({0: usual, 1: [slow, slow, slow, fast, fast]})
    assert one.ranks == (1,)


def test_of_few_steps_the_upper_quartile_counts() -> None:
    """Five steps, and one or two more in a second window."""
    usual = [to(0, 1, USUAL)]
    slow, fast = to(1, 0, SLOW), to(1, 0, USUAL)
    assert found({0: usual, 1: [slow, replace(fast, steps=2)]}) == []
    assert [one.ranks for one in found({0: usual, 1: [slow, replace(fast, steps=1)]})] == [(1,)]


def test_in_a_ring_whoever_sends_is_named_and_of_several_senders_the_receiver() -> None:
    ring = {0: [to(0, 1, USUAL)], 1: [to(1, 2, SLOW)], 2: [to(2, 0, USUAL)]}
    assert [one.ranks for one in found(ring)] == [(1,)]
    to_one = {0: [to(0, 1, USUAL), to(0, 2, SLOW)], 1: [to(1, 0, USUAL), to(1, 2, SLOW)], 2: [to(2, 0, USUAL)]}
    (one,) = found(to_one)
    assert (one.ranks, one.evidence[0].figures["receives"]) == ((2,), 1)


def test_what_most_hosts_have_is_the_network_of_all() -> None:
    """Each of three sends slowly to the next."""
    round_about = {rank: [to(rank, (rank + 1) % 3, SLOW), to(rank, (rank + 2) % 3, USUAL)] for rank in range(3)}
    assert [(one.cause, one.ranks) for one in found(round_about)] == [("exposed_communication", ())]


def test_whoever_sends_to_all_slowly_is_named_once_though_it_receives_slowly_too() -> None:
    def mesh(slow: set[tuple[int, int]]) -> dict[int, list[SentToHost]]:
        hosts = range(4)
        return {
            own: [to(own, peer, SLOW if (own, peer) in slow else USUAL) for peer in hosts if peer != own]
            for own in hosts
        }

    of_host_1 = {(1, peer) for peer in (0, 2, 3)}
    assert [one.ranks for one in found(mesh(of_host_1))] == [(1,)]
    assert [one.ranks for one in found(mesh(of_host_1 | {(peer, 1) for peer in (0, 2, 3)}))] == [(1,)]
    # Two that send slowly, not those that they send to.
    of_two = {(own, peer) for own in (1, 2) for peer in range(4)}
    assert [one.ranks for one in found(mesh(of_two))] == [(1,), (2,)]


def test_hosts_are_known_by_their_addresses_where_they_have_no_names() -> None:
    assert [one.ranks for one in found({0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]}, {})] == [(1,)]


def test_an_address_of_several_hosts_tells_nothing() -> None:
    """Containers that have the same one, each behind a bridge of its own."""
    sent = {0: [to(0, 1, USUAL)], 1: [to(0, 1, USUAL)], 2: [to(1, 0, SLOW)]}
    assert found(sent) == []


def test_a_network_that_takes_a_tenth_of_the_step_is_told_on_all_ranks() -> None:
    """2 MB at 0.1 GB/s take 20 ms, at 0.15 GB/s 13."""
    (one,) = found({0: [to(0, 1, SLOW, again=2)], 1: [to(1, 0, 1.5 * SLOW, again=1)]})
    assert (one.cause, one.pattern, one.ranks, one.seen_on) == ("exposed_communication", "job_wide", (), (0, 1))
    assert one.time_lost_us_per_step == pytest.approx(20_000)
    (shown,) = one.evidence
    assert (shown.kind, shown.about) == ("network", "host0 to host1")
    assert shown.figures == pytest.approx(
        {
            "bytes_per_step": 2 * MB,
            "bytes_per_s": SLOW,
            "fastest_bytes_per_s": 1.5 * SLOW,
            "delivering_us_per_step": 20_000,
            "retransmitted_per_step": 3,
        }
    )
    assert faster_transfers(one, job(nothing(8, 2), transfers=40)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "sent",
    [
        {0: [to(0, 1, SLOW, size=0.9 * MB)], 1: [to(1, 0, SLOW, size=0.9 * MB)]},
        {0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]},
        {0: [], 1: []},
    ],
    ids=["it takes less", "one host's is slow", "nothing was asked"],
)
def test_no_network_of_all_is_told_without_that(sent: dict[int, list[SentToHost]]) -> None:
    assert all(one.ranks for one in found(sent))


def test_a_network_takes_no_longer_than_the_step_and_costs_no_more_than_ranks_do_not_work() -> None:
    """2 MB at a kilobyte a second would take half an hour: what is delivered in a step takes no longer than that."""
    (one,) = found({0: [to(0, 1, USUAL)], 1: [to(1, 0, 1e3)]})
    assert one.evidence[0].figures["delivering_us_per_step"] == pytest.approx(100_000)
    assert one.time_lost_us_per_step == pytest.approx(60_000)
    (one,) = found({0: [to(0, 1, 1e3)], 1: [to(1, 0, 1e3)]})
    assert one.evidence[0].figures["delivering_us_per_step"] == pytest.approx(100_000)
    assert one.time_lost_us_per_step == pytest.approx(60_000)


def test_steps_that_take_no_time_are_no_error() -> None:
    sent = {0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]}
    assert all(
        one.time_lost_us_per_step == 0 for one in slow_networks(trace_of(sent, {}), waiting(2), 0.0, np.zeros(2), None)
    )


def test_links_of_a_host_whose_network_is_slow_are_not_told_again() -> None:
    networks = found({0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]})
    links = [replace(networks[0], ranks=(Rank(1), Rank(2))), replace(networks[0], ranks=(Rank(3),))]
    assert [one.ranks for one in without_slow_networks(links, networks)] == [(3,)]


def test_communication_is_replayed_as_long_as_it_would_take_at_the_usual_rate() -> None:
    (one,) = found({0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]})
    assert faster_transfers(one, job(nothing(8, 2))) == 0
    assert faster_transfers(one, job(nothing(8, 2), transfers=38)) == pytest.approx(0.5)  # 19 ms of 38 are lost


@pytest.mark.parametrize(
    ("replayed_ms", "price_ms", "by", "between_ms"),
    [
        (19, 19, "replay", (19, 19)),
        (11, 15, "replay", (11, 19)),
        (31, 25, "replay", (19, 31)),
        (9, 19, "excess", (9, 19)),
        (-1, 19, "excess", (0, 19)),
    ],
)
def test_a_price_is_half_way_between_the_replay_and_the_transfers(
    replayed_ms: float, price_ms: float, by: str, between_ms: tuple[float, float]
) -> None:
    """They take 19 ms longer than usual; a replay that sees less than half of that tells nothing."""
    (one,) = found({0: [to(0, 1, USUAL)], 1: [to(1, 0, SLOW)]})
    price = network_price(one, replayed_ms * 1e3)
    assert price is not None
    assert price.us_per_step == pytest.approx(price_ms * 1e3)
    assert price.priced_by == by
    least, most = between_ms
    assert price.between.figures == pytest.approx({"least_us": least * 1e3, "most_us": most * 1e3})
    assert network_price(replace(one, evidence=()), replayed_ms * 1e3) is None
