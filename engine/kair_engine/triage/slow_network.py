"""Networks that are slow, a host's or that of all, by how the kernel saw what ranks sent to others delivered.

A trace alone cannot show this: all ranks of a collective take as long as its slowest transfer, and a rank that waits
for cores takes as long as one that waits for the network. Rates can, host by host. They may be old, though; how soon
transfers are acknowledged is not.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.ranks import Rank
from kair_engine.results.evidence_kinds import Evidence, Network, PriceRange, SlowNetwork
from kair_engine.results.triage import Finding, PricedBy
from kair_engine.stats import reached, usual_rate
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.model import Job, SentToHost, Trace, host_of
from kair_engine.triage.findings import new_finding

RATE_GAP: Final = 2.0
"""A network is slow if transfers over it are delivered at a rate this many times lower than others'. Rates of transfers
that are alike differ by less where that costs: by sizes, and by who has a core."""
BUSY_RATIO: Final = 1.1
"""Transfers of a host whose network is slow are on their way at least this many times as long as those of others."""
SLOWEST_BY_CHANCE: Final = 0.05
"""A host must be slowest in so many steps that the chance of this for a healthy host is lower."""
MIN_COST_SHARE: Final = 0.05
"""A slow network is reported if delivery takes longer than at the other hosts' rate by this share of the step."""
MIN_QUEUEING_NS: Final = 1e6
"""Queueing delay on an idle path stays below this even on a CPU-starved host."""
MIN_TRAFFIC_SHARE: Final = 0.10
"""A path is compared if it carries more than this share of what the busiest one does: the rate of less is that of
single packets, which nobody fills."""
MIN_DELIVERY_SHARE: Final = 0.10
"""A network of all hosts is slow if delivering what some host sends takes this share of the step: every job of several
hosts has less than that."""

MIN_REPLAY_FRACTION: Final = 0.5
"""A replay's price of transfers is used if it saves this part of what they take."""

_OF_NETWORK: Final = frozenset({"network", "slow_network"})
"""Evidence of it."""

_Host = str
"""Its name; its address where that is not known."""
_Ends = tuple[_Host, _Host]


class Transfers(NamedTuple):
    """From one host to another."""

    bytes_per_step: float
    bytes_per_s: float
    retransmitted_per_step: float
    round_trip_ns: float
    """To the acknowledgement; NaN where that is not known."""
    queued_ns: float
    """So much of it surely because of what queues on the way; NaN where that is not known."""
    busy_ns: float
    """So long of a step some of them was not acknowledged; NaN where that is not known."""

    @property
    def queues(self) -> bool:
        """Whether they wait for the network: that is never an old figure, as the rate may be."""
        return self.queued_ns >= MIN_QUEUEING_NS

    @property
    def ns_per_step(self) -> float:
        """That it takes to deliver them."""
        return self.busy_ns if self.queues else float(np.fmin(self._at_rate_ns, self.busy_ns))

    @property
    def reached_bytes_per_s(self) -> float:
        """In that time."""
        return self.bytes_per_step / self.ns_per_step * 1e9 if self.ns_per_step else self.bytes_per_s

    @property
    def is_rate_old(self) -> bool:
        """Whether they take far longer than at the rate."""
        return self.ns_per_step > RATE_GAP * self._at_rate_ns

    @property
    def _at_rate_ns(self) -> float:
        return self.bytes_per_step / self.bytes_per_s * 1e9


class NetworkPrice(NamedTuple):
    """What one costs."""

    us_per_step: float
    priced_by: PricedBy
    between: Evidence
    """What and what it is known to lie."""


@dataclass(frozen=True)
class _SlowHost:
    host: _Host
    receives: bool
    """What is sent to it is slow, from several hosts; else what it sends."""
    slow: tuple[Transfers, ...]
    usual_bytes_per_s: float
    not_read_ns: float
    """For so long of a step some receiving rank read nothing."""

    @property
    def lost_ns(self) -> float:
        """In a step, compared with transfers at the usual rate to ranks that receive them."""
        lost = sum(one.ns_per_step - one.bytes_per_step / self.usual_bytes_per_s * 1e9 for one in self.slow)
        return lost - self.not_read_ns


def slow_networks(
    trace: Trace, job: JobExcess, step_time_ns: float, asleep_ns: Floats, processor: ProcessorTimes | None
) -> Iterator[Finding]:
    """Yield a finding for each host whose transfers are RATE_GAP times slower than others', if that costs.

    If no host's are, or too few steps show it, it is one on all ranks if a good part of the step goes by in sending.
    `asleep_ns` says of each rank of the job how much longer it stands still in a step than its peers, `processor` how
    long its thread that communicates had no core: what is sent to it then is not read, and passes for sent slowly.
    """
    between = between_hosts(trace.job, step_time_ns)
    if not between:
        return
    most_ns = _beside_own_work_ns(job, step_time_ns)
    asleep = _longest_by_host(trace.job, asleep_ns)
    not_read = _longest_by_host(trace.job, asleep_ns + _without_core_ns(job, processor))
    hosts = len({host for ends in between for host in ends})
    # One of them is the slowest in every step by this chance, where all are alike.
    is_lasting = hosts ** (1.0 - len(job.steps)) < SLOWEST_BY_CHANCE
    slow_hosts = _slow_hosts(between, not_read) if is_lasting else ()
    costly = [slow for slow in slow_hosts if slow.lost_ns >= MIN_COST_SHARE * step_time_ns]
    if 2 * len(costly) > hosts:
        costly = []  # what most hosts have is the network of all
    for slow in costly:
        ranks = tuple(rank for rank in trace.job.ranks if _host(trace.job, rank) == slow.host)
        yield new_finding(
            trace,
            cause="communication",
            pattern="persistent" if len(ranks) == 1 else "group",
            ranks=ranks,
            lost_ns=min(slow.lost_ns, most_ns),
            step_time_ns=step_time_ns,
            evidence=(_evidence(slow, ranks),),
        )
    if not costly:
        takes = {
            ends: of.ns_per_step - (0.0 if of.queues else asleep.get(ends[1], 0.0)) for ends, of in between.items()
        }
        sender, receiver = max(takes, key=lambda ends: takes[ends])
        longest, takes_ns = between[sender, receiver], takes[sender, receiver]
        if takes_ns >= MIN_DELIVERY_SHARE * step_time_ns:
            yield new_finding(
                trace,
                cause="exposed_communication",
                seen_on=tuple(trace.job.ranks),
                lost_ns=min(takes_ns, most_ns),
                step_time_ns=step_time_ns,
                evidence=(_evidence_of_all(between, longest, f"{sender} to {receiver}"),),
            )


def without_slow_networks(links: Iterable[Finding], networks: Sequence[Finding]) -> Iterator[Finding]:
    """Return findings about links, but those of a host whose network is slow anyway."""
    known = set(chain.from_iterable(one.ranks for one in networks))
    return (one for one in links if known.isdisjoint(one.ranks))


def faster_transfers(finding: Finding, job: JobExcess) -> float:
    """By what all communication is scaled: a slow host's then takes as long as others', that of all hosts no time."""
    places = np.searchsorted(job.ranks, finding.ranks or finding.seen_on)
    takes = float(np.median(job.transfers_ns[places]))
    return round(max(1 - finding.time_lost_us_per_step * 1e3 / max(takes, 1.0), 0.0), 4)


def network_price(finding: Finding, replayed_us: float) -> NetworkPrice | None:
    """Return what a slow network costs in a step; None for other findings.

    Half-way between what a replay says and how long its transfers take. The former is too little where the replay keeps
    apart what lateness made late, as the next stage's work: less than half of the latter says nothing. That is too much
    where others compute anyway.
    """
    if not finding.shows & _OF_NETWORK:
        return None
    replayed, takes = max(replayed_us, 0.0), finding.time_lost_us_per_step
    between = PriceRange(min(replayed, takes), max(replayed, takes), about="network")
    sees_it = replayed >= MIN_REPLAY_FRACTION * takes
    price = (replayed + takes) / 2 if sees_it else takes
    return NetworkPrice(price, "replay" if sees_it else "excess", between)


def _beside_own_work_ns(job: JobExcess, step_time_ns: float) -> float:
    """Of a step, what the rank that works longest does not do itself: no network can be to blame for more."""
    own = np.delete(job.work_ns, CLASSES.index("communication"), axis=0).sum(axis=0)
    return max(step_time_ns - float(own.max()), 0.0)


def _evidence(slow: _SlowHost, ranks: tuple[Rank, ...]) -> SlowNetwork:
    sent = sum(one.bytes_per_step for one in slow.slow)
    return SlowNetwork(
        bytes_per_step=sent,
        bytes_per_s=sent / sum(one.ns_per_step for one in slow.slow) * 1e9,
        usual_bytes_per_s=slow.usual_bytes_per_s,
        delivering_us_per_step=sum(one.ns_per_step for one in slow.slow) / 1e3,
        retransmitted_per_step=sum(one.retransmitted_per_step for one in slow.slow),
        receives=float(slow.receives),
        queued_us=_queued_us(slow.slow),
        ranks=ranks,
    )


def _evidence_of_all(between: Mapping[_Ends, Transfers], longest: Transfers, hosts: str) -> Network:
    return Network(
        bytes_per_step=longest.bytes_per_step,
        bytes_per_s=longest.reached_bytes_per_s,
        fastest_bytes_per_s=max(one.reached_bytes_per_s for one in between.values()),
        delivering_us_per_step=longest.ns_per_step / 1e3,
        retransmitted_per_step=sum(one.retransmitted_per_step for one in between.values()),
        queued_us=_queued_us([longest]),
        about=hosts,
    )


def _queued_us(transfers: Sequence[Transfers]) -> float | None:
    """Return how much of a round trip is queueing at most; None where that is not known."""
    return max((one.queued_ns / 1e3 for one in transfers if not math.isnan(one.queued_ns)), default=None)


def _host(job: Job, rank: Rank) -> _Host | None:
    """Where its name is not known, the address that it sends most from."""
    name = host_of(job, rank)
    if name is not None or not job.sent.get(rank):
        return name
    return max(job.sent[rank], key=lambda one: one.bytes_per_step * one.steps).own


def _hosts_of_addresses(job: Job) -> dict[str, _Host]:
    """Without addresses that several hosts have: what is sent to those goes to any of them."""
    of: dict[str, set[_Host]] = defaultdict(set)
    for rank in job.ranks:
        if (host := _host(job, rank)) is not None:
            for one in job.sent.get(rank, ()):
                of[one.own].add(host)
    return {address: hosts.pop() for address, hosts in of.items() if len(hosts) == 1}


def between_hosts(job: Job, step_time_ns: float) -> dict[_Ends, Transfers]:
    """Return the transfers by sender and receiver, of hosts whose addresses are known; without those that send little.

    What was delivered in a step took no longer than the step, whatever its last part shows.
    """
    hosts = _hosts_of_addresses(job)
    of_rank: dict[_Ends, dict[Rank, list[SentToHost]]] = defaultdict(lambda: defaultdict(list))
    for rank in job.ranks:
        for one in job.sent.get(rank, ()):
            sender, receiver = hosts.get(one.own), hosts.get(one.peer)
            if sender is not None and receiver is not None and sender != receiver:
                of_rank[sender, receiver][rank].append(one)
    between = {ends: _together(list(of.values())) for ends, of in of_rank.items()}
    most = max((of.bytes_per_step for of in between.values()), default=0.0)
    return {
        ends: of._replace(
            bytes_per_s=max(of.bytes_per_s, of.bytes_per_step / max(step_time_ns, 1.0) * 1e9),
            busy_ns=float(np.minimum(of.busy_ns, step_time_ns)),
        )
        for ends, of in between.items()
        if of.bytes_per_step > MIN_TRAFFIC_SHARE * most
    }


def _together(of_ranks: Sequence[Sequence[SentToHost]]) -> Transfers:
    """Of several ranks the rate of most bytes; of several windows as of the steps of one."""
    rates = [usual_rate([one.bytes_per_s for one in of], [one.steps for one in of]) for of in of_ranks]
    sizes = [_mean(of, [one.bytes_per_step for one in of]) for of in of_ranks]
    again = [_mean(of, [one.retransmitted_per_step for one in of]) for of in of_ranks]
    every, busy_ns = list(chain(*of_ranks)), float(np.max([_busy_ns(of) for of in of_ranks]))
    return Transfers(
        sum(sizes),
        reached(rates, sizes, 0.5),
        sum(again),
        _of_most_bytes(every, [one.round_trip_ns for one in every]),
        _of_most_bytes(every, [one.queued_ns for one in every]) if not math.isnan(busy_ns) else math.nan,
        busy_ns,
    )


def _of_most_bytes(windows: Sequence[SentToHost], figures: Sequence[float | None]) -> float:
    """Return the median, weighted by bytes, of those that are known; NaN where none is."""
    pairs = zip(figures, windows, strict=True)
    known = [(figure, one.bytes_per_step * one.steps) for figure, one in pairs if figure is not None]
    return reached([figure for figure, _ in known], [size for _, size in known], 0.5) if known else math.nan


def _busy_ns(windows: Sequence[SentToHost]) -> float:
    """Return how long one rank was busy sending in a step, ns; NaN unless all windows have it."""
    told = [one.busy_ns_per_step for one in windows if one.busy_ns_per_step is not None]
    return _mean(windows, told) if len(told) == len(windows) else math.nan


def _mean(windows: Sequence[SentToHost], per_step: Sequence[float]) -> float:
    steps = [one.steps for one in windows]
    return sum(of * count for of, count in zip(per_step, steps, strict=True)) / sum(steps)


def _without_core_ns(job: JobExcess, processor: ProcessorTimes | None) -> Floats:
    """Per rank of the job, how long in a step its thread that communicates was ready and had no core."""
    nothing = np.zeros(len(job.ranks))
    if processor is None:
        return nothing
    told = ~np.isnan(processor.communication_delay_ns)
    lacked = np.where(told, processor.communication_delay_ns, 0.0).sum(axis=1) / np.maximum(told.sum(axis=1), 1)
    nothing[np.searchsorted(job.ranks, processor.ranks)] = lacked
    return nothing


def _longest_by_host(job: Job, of_ranks: Floats) -> dict[_Host, float]:
    """Of each host's ranks the largest."""
    longest: dict[_Host, float] = defaultdict(float)
    for rank, of_rank in zip(job.ranks, of_ranks.tolist(), strict=True):
        if (host := _host(job, rank)) is not None:
            longest[host] = max(longest[host], of_rank)
    return longest


def _slow_hosts(between: Mapping[_Ends, Transfers], not_read_ns: Mapping[_Host, float]) -> Iterator[_SlowHost]:
    """Those that send slowly, or that several others send to slowly; compared with what other hosts send."""
    usual = _of_other_hosts({ends: of.bytes_per_s for ends, of in between.items()})
    usually_busy = _of_other_hosts({ends: of.busy_ns for ends, of in between.items()})
    slow = [
        ends
        for ends, of in between.items()
        if ends in usual
        and of.bytes_per_s * RATE_GAP <= usual[ends]
        and not of.busy_ns < BUSY_RATIO * usually_busy[ends]
        and not of.is_rate_old
    ]
    every, slow_from, slow_to = (
        Counter(ends[at] for ends in some) for some, at in ((between, 0), (slow, 0), (slow, 1))
    )
    of: dict[_Host, dict[bool, list[_Ends]]] = defaultdict(lambda: defaultdict(list))
    for sender, receiver in slow:
        # Who sends to all slowly does so itself; else it is the receiver, if others send to it slowly, too.
        sends = every[sender] > 1 and slow_from[sender] == every[sender]
        receives = not sends and slow_to[receiver] > 1
        of[receiver if receives else sender][receives].append((sender, receiver))
    for host, ways in of.items():
        later = times_later(between, host)
        if later < RATE_GAP:
            continue
        queues = not math.isnan(later)
        both = [
            _SlowHost(
                host,
                receives,
                tuple(between[ends] for ends in some),
                float(np.median([usual[ends] for ends in some])),
                max(0.0 if queues or between[ends].queues else not_read_ns.get(ends[1], 0.0) for ends in some),
            )
            for receives, some in ways.items()
        ]
        yield max(both, key=lambda one: one.lost_ns)


def times_later(between: Mapping[_Ends, Transfers], host: _Host) -> float:
    """How many times later what the host sends or receives is acknowledged than what others send one another.

    What it sends queues at its link, and so do the acknowledgements of what is sent to it. NaN of two hosts, and where
    that is not known.
    """
    own, others = (
        [of.round_trip_ns for ends, of in between.items() if (host in ends) is its and not math.isnan(of.round_trip_ns)]
        for its in (True, False)
    )
    return float(np.median(own)) / max(float(np.median(others)), 1.0) if own and others else math.nan


def _of_other_hosts(figures: Mapping[_Ends, float]) -> dict[_Ends, float]:
    """Return the median of what other hosts send; nothing where no other does."""
    sender, values = np.array([ends[0] for ends in figures]), np.array(list(figures.values()))
    others = {host: values[sender != host] for host in {ends[0] for ends in figures}}
    return {ends: float(np.median(others[ends[0]])) for ends in figures if len(others[ends[0]])}
