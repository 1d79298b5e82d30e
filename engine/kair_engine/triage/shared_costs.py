"""Finds what all ranks spend alike: stops of their threads, input, launches, communication, copies, collections.

Peers do not show it. Each is priced by a replay without it, and reported if it costs a good part of the step. For a
lack of cores it also gives the range of the loss, and how much of it the ranks' own threads take.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.causes import CAUSES, Cause
from kair_engine.errors import InputError, UsageError
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.imbalance import BATCH_SHARE
from kair_engine.localize.moments import Moment, shared_moments
from kair_engine.localize.noise import noise_of_mean
from kair_engine.ranks import Position, Rank
from kair_engine.results import evidence_kinds as kinds
from kair_engine.results.evidence_kinds import Evidence, ShownBy
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import Fix, HostStops, LackOfCores
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.account import KINDS, WHEN, AccountKind, When
from kair_engine.timeline.host_activity import CALLS, HostKind
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.model import Job, Trace, host_of
from kair_engine.triage.evidence import MIN_STOPS, cores_evidence, stops_evidence
from kair_engine.triage.findings import new_finding
from kair_engine.triage.ranks.cpu_limits import oversubscribed_evidence
from kair_engine.triage.replays import Replays, fits
from kair_engine.whatif.model import Baseline, Counterfactual, Model, Undisturbed

WIDE: Final = 2.0
"""Standard errors of a mean over the steps, on either side."""
MOSTLY_OWN: Final = 0.5
"""If the ranks' own threads take this share of what they lack, that is reported."""


def own_threads(job: Job, cores: LackOfCores | None, step_time_us: float) -> tuple[float, kinds.OwnThreads] | None:
    """Return how much of what ranks lack their own threads take, since they run more of them than they have cores.

    With the evidence of it. None where nobody asked, or the ranks' cores are not known. While a thread has no core, one
    that helps it may compute in its place, or somebody else does. The former is so as far as helpers compute for as
    long as their thread lacks a core, and ranks use the cores they have themselves.
    """
    if cores is None or not any(cores.helpers_by_rank_us.values()):
        return None
    ready, helpers = cores.ready_by_rank_us, cores.helpers_by_rank_us
    on_host: dict[str | None, list[int]] = defaultdict(list)
    for rank in ready:
        on_host[host_of(job, Rank(rank))].append(rank)
    own_us, fullest = 0.0, (0.0, 0, 0)
    for ranks in on_host.values():
        limits = [one for rank in ranks if (one := job.limits.get(rank)) is not None and one.cpus]
        if len(limits) < len(ranks):
            return None
        count = len({cpu for one in limits for cpu in one.cpus})
        computed = sum(cores.computed_by_rank_us[rank] + helpers[rank] for rank in ranks)
        used = computed / max(count * step_time_us, 1e-9)
        own_us += sum(min(helpers[rank], ready[rank]) for rank in ranks) * min(used, 1.0)
        fullest = max(fullest, (used, count, len(ranks)))
    told = kinds.OwnThreads(sum(helpers.values()) / len(helpers), *fullest, shown_by=ShownBy("whatif"))
    return own_us / max(sum(ready.values()), 1e-9), told


STOPPED_SHARE = 0.05
"""The mean rank, and half of the ranks, must stand still for this share of the step."""
OTHER_STOPPED = 1 / 3
"""Of the two ranks in the middle one must stand still for this part of what the other does: else one is the culprit."""
TICKED_SHARE = 0.10
"""The mean rank must spend this share of the step on what is as long as ticks, where threads wait for those."""
MEASURED_TICKED_SHARE = 0.01
"""The mean rank must be ready without a core for this share of the step, where it was measured what threads lack."""
MIN_MEASURED_SHARE = 0.005
"""The mean rank must have lacked a core for this share of the step, where that was measured; with cores enough it is
0.0015."""
INSIDE_SHARE = 0.015
"""With devices, three of four ranks must stand still for this share of the step in the middle of operators."""
NOTABLE_SHARE: Final[Mapping[Cause, float]] = {
    "input_bound": 0.08,
    "garbage_collection": 0.05,
    "profiler": 0.05,
    "allocator": 0.05,
    "compilation": 0.05,
    "device_contention": 0.05,
    "copies": 0.10,
    "exposed_communication": 0.30,
    "launch_bound": 0.30,
    "sequence_imbalance": BATCH_SHARE,
}
"""Of the step, what each must cost that is left once ranks and links are as they should be: collectives and launches
every job has, fetches should cost nothing."""
ONE_BY_ONE_SHARE: Final = 0.10
"""Of the step: how long the median device must idle between launches that follow one another."""
_HOSTS_SPEND: Final[Mapping[Cause, HostKind]] = {
    "input_bound": "input",
    **{kind: kind for kind in ("garbage_collection", "profiler", *CALLS)},
}
"""The kind of time in the account of ranks that have a cause, where single ones can have it, too."""
_HIT: Final = 0.1
"""Steps that lose less to calls than this part of what the costliest one does are not named."""
OF_DEVICES: Final = frozenset({"copies", "exposed_communication"})
"""Reported only for recordings with devices: on a thread, communication is the job's ordinary work."""

Others = Callable[[Model, HostStops | None, Sequence[Finding]], Sequence[Counterfactual]]
"""What else will be asked of a model, given how threads stand still and what is found of all ranks for that."""


class SharedCosts:
    """The sampled steps, made ready for replay; steps that are too large for one are not used.

    `others` is what else will be asked of the same steps, as far as that is known; it is replayed with them. What ranks
    share is what the ranks have that are not `accused`: one loss is reported once.
    """

    def __init__(
        self,
        trace: Trace,
        replays: Replays,
        parts: StepPartsTally,
        step_time_ns: float,
        others: Others = lambda *_: (),
        *,
        counted: ProcessorTimes | None = None,
        accused: Collection[Position] = (),
    ) -> None:
        everybody = np.arange(len(trace.job.ranks))
        self._shared = ~np.isin(everybody, sorted(accused)) if 0 < len(accused) < len(everybody) else everybody >= 0
        self._trace, self._parts, self._step_time_ns, self._others = trace, parts, step_time_ns, others
        self._model, self._counted = _model(replays), counted
        self.stops: HostStops | None = None
        self._fixes: dict[Cause, Fix] = {}
        if self._model is not None:
            try:
                self._fixes = {cause: fix for cause in NOTABLE_SHARE if (fix := self._without(cause)) is not None}
                asked = [Baseline.RECORDED, *_alone(self._fixes), *others(self._model, None, ())]
                self._model.replay(asked, self._foreseen)
                self.stops = self._model.host_stops()
            except InputError:
                self._model = None

    def _foreseen(self, stops: HostStops | None) -> Sequence[Counterfactual]:
        """Return what is asked besides where all steps have stops as the first ones have."""
        if stops is None or self._model is None or not any(self._is_contended(stops)):
            return ()
        return [*self._range(stops), *self._others(self._model, stops, (self._contended(stops, ()),))]

    def findings(self, job: JobExcess) -> Iterator[Finding]:
        """One for each that costs enough."""
        yield from self._calls()
        if self._model is None:
            return
        stopped = list(self._contention())
        yield from stopped
        if self._trace.job.has_device and self._step_time_ns > 0:
            yield from self._launches(hosts_stop=bool(stopped))
            yield from self._taken(self._model)
        replayed = self._model.replay([Baseline.RECORDED, *_alone(self._fixes)])
        recorded, *without = (float(of.mean()) for of in replayed.times)
        for cause, after in zip(self._fixes, without, strict=True):
            share = 1 - after / max(recorded, 1.0)
            if share >= NOTABLE_SHARE[cause] <= self._of_median_rank(cause):
                # The few steps that most of the input is waited for in, where not all steps have it.
                moments = shared_moments(job) if cause == "input_bound" else ()
                moment = next((one for one in moments if CLASSES[one.class_index] == "input"), None)
                steps = None if moment is None else tuple(job.steps[at].step for at in moment.hit)
                yield self._finding(cause, share * self._step_time_ns, self._shown(job, cause, moment), steps)

    def _finding(
        self, cause: Cause, lost_ns: float, evidence: Iterable[Evidence], steps: tuple[int, ...] | None = None
    ) -> Finding:
        return new_finding(
            self._trace,
            cause=cause,
            seen_on=tuple(self._trace.job.ranks),
            lost_ns=lost_ns,
            step_time_ns=self._step_time_ns,
            steps=steps,
            evidence=tuple(evidence),
        )

    def _spent_ns(self, kinds: Sequence[AccountKind], when: Sequence[When] = WHEN) -> float:
        """Return what the median rank that nobody is accused of spends on kinds of its account."""
        return float(np.median(self._parts.of_kinds_ns(kinds, when)[self._shared]))

    def _calls(self) -> Iterator[Finding]:
        """Yield what hosts spend in allocators and compilers while their devices run empty.

        A replay keeps what threads wait for one another without a mark, so that it saves too little: the devices' idle
        time is the price. All ranks wait for whoever is in such calls longest in a step.
        """
        for kind in CALLS:
            if (share := self._of_median_rank(kind)) >= NOTABLE_SHARE[kind]:
                longest = self._parts.by_step_ns((kind,))[:, self._shared].max(axis=1)
                hit = np.flatnonzero(longest >= _HIT * longest.max()).tolist()
                shown = kinds.InCalls(share * self._step_time_ns / 1e3, about=kind)
                steps = [self._parts.divided[at] for at in hit]
                yield self._finding(kind, float(longest.mean()), [shown], tuple(steps))

    def _launches(self, *, hosts_stop: bool) -> Iterator[Finding]:
        """Yield devices that idle because their hosts launch too late; where hosts stop, they launch late for that.

        What hosts spend on calls that are separate causes is reported as those. No replay shows what faster hosts save.
        """
        least = {kinds.DeviceIdle: NOTABLE_SHARE["launch_bound"], kinds.OneByOne: ONE_BY_ONE_SHARE}
        late = self._spent_ns(("launching", "host", "synchronising"), ("before", "between", "launches"))
        shares = (0.0 if hosts_stop else late, self._spent_ns(KINDS, ("launches",)))
        told = {
            kind: idle for kind, idle in zip(least, shares, strict=True) if idle >= least[kind] * self._step_time_ns
        }
        if told:
            shown = (kind(idle / 1e3, idle / self._step_time_ns) for kind, idle in told.items())
            yield self._finding("launch_bound", max(told.values()), shown)

    def _taken(self, model: Model) -> Iterator[Finding]:
        """Devices that run nothing of their rank though it has launched something.

        A wait costs nothing where the host is late anyway, which a replay without waits knows. An interrupted kernel is
        only longer: so the most that it costs is a replay without both, or all waits.
        """
        waited = self._spent_ns(("queued",))
        if waited < NOTABLE_SHARE["device_contention"] * self._step_time_ns:
            return
        replayed = model.replay([Baseline.RECORDED, Undisturbed.UNQUEUED, Undisturbed.ALONE_ON_DEVICE])
        recorded, *without = (float(times.mean()) for times in replayed.times)
        least, most = (max(recorded - after, 0.0) for after in without)
        lost = min(least, waited)
        shown = kinds.DeviceTaken(waited / 1e3, waited / self._step_time_ns)
        yield self._finding("device_contention", lost, [shown, price_range(lost, max(most, waited))])

    def _contention(self) -> Iterator[Finding]:
        """Threads that stand still on all ranks now and then, though they wait for nobody."""
        stops = self.stops
        if stops is None or self._model is None:
            return
        often, seldom = self._is_contended(stops)
        if not (often or seldom):
            return
        # Threads that wait busily compute nothing that others would have to.
        own = None if stops.tick_us else own_threads(self._trace.job, stops.cores, self._step_time_ns / 1e3)
        shown: list[Evidence] = [] if own is None or own[0] < MOSTLY_OWN else [own[1]]
        if between := self._range(stops):
            least, lost, most = self._without_stops(self._model, between, 0.0 if own is None else own[0])
            if lost < STOPPED_SHARE * self._step_time_ns and not often:
                return
            shown.append(price_range(least, most))
        yield self._contended(stops, shown)

    def _range(self, stops: HostStops) -> tuple[Undisturbed, ...]:
        """Between what these two save lies what contention costs; nothing where that is one figure."""
        if stops.cores is not None:
            return Undisturbed.THREADS_RUN, Undisturbed.ENOUGH_CORES
        # On streams what takes longer than usual may have waited for others on the device.
        on_threads = self._parts.threads_communicate or not self._trace.job.has_device
        ranged = on_threads or stops.tick_us is not None
        return (Undisturbed.THREADS_RUN, Undisturbed.USUAL) if ranged else ()

    def _is_contended(self, stops: HostStops) -> tuple[bool, bool]:
        """Whether threads stood still often; or seldom, but in the middle of operators."""
        if stops.cores is not None:
            return self._lacks_cores(stops, stops.cores), False
        own, inside = (np.array(list(of.values())) * 1e3 for of in (stops.by_rank_us, stops.inside_by_rank_us))
        # Of single ranks their peers show it.
        least = STOPPED_SHARE * self._step_time_ns
        often = stops.share_of_step >= STOPPED_SHARE and of_half(own) >= least
        often |= stops.ticked_share >= TICKED_SHARE
        # With a device a stop shows as such only where it hits an operator of the program.
        within = float(np.quantile(inside, 0.25)) >= INSIDE_SHARE * self._step_time_ns
        seldom = self._parts.threads_communicate and within
        if self._counted is None or not self._counted.tells_all:
            return often, seldom
        # What lacks no core, and nothing stops, stands still for something else.
        lacked, counted = self._counted.lacked_ns, self._counted
        # Threads that communicate lack cores next to training ones that do; alone they may have time enough.
        lacks = min(float(counted.ready_ns.mean()), of_half(lacked)) >= least
        borne_out = max(counted.throttled_per_step, counted.halted_per_step) >= MIN_STOPS
        borne_out |= float(lacked.mean()) >= MIN_MEASURED_SHARE * self._step_time_ns
        return often and borne_out, lacks or (seldom and borne_out)

    def _lacks_cores(self, stops: HostStops, cores: LackOfCores) -> bool:
        """Return whether ranks lack cores, as it was measured: what only looks like it is no stop."""
        lost, ready = (np.array(list(of.values())) * 1e3 for of in (cores.lost_by_rank_us, cores.ready_by_rank_us))
        least = STOPPED_SHARE * self._step_time_ns
        ticked = stops.ticked_share >= TICKED_SHARE
        ticked &= float(ready.mean()) >= MEASURED_TICKED_SHARE * self._step_time_ns
        return ticked or min(float(lost.mean()), of_half(lost)) >= least

    def _contended(self, stops: HostStops, shown: Sequence[Evidence]) -> Finding:
        lost = stops.share_of_step * self._step_time_ns
        if stops.cores is not None:
            lost = 1e3 * float(np.mean(list(stops.cores.lost_by_rank_us.values())))
        return new_finding(
            self._trace,
            cause="contention",
            seen_on=tuple(Rank(rank) for rank in stops.by_rank_us),
            lost_ns=max(lost, stops.ticked_share * self._step_time_ns),
            step_time_ns=self._step_time_ns,
            evidence=(
                *cores_evidence(stops, self._step_time_ns, self._counted),
                *oversubscribed_evidence(self._trace.job, self._trace.job.ranks),
                *stops_evidence(stops),
                *shown,
            ),
        )

    @staticmethod
    def _without_stops(model: Model, between: Sequence[Counterfactual], own_share: float) -> tuple[float, float, float]:
        """Return what a step saves, in ns: at least, with the fix of stops, and at most.

        What ranks' own threads take they would have to compute otherwise: with fewer threads as little may be saved as
        others take. And a mean over the steps is known no better than the steps agree.
        """
        fix = fix_of_all("contention")
        assert fix is not None
        asked: list[Counterfactual] = [Baseline.RECORDED, *between, (fix,)]
        recorded, *without = model.replay(asked).times
        least, most, price = (recorded - times for times in without)
        lowest, of_stops, highest = (max(float(saved.mean()), 0.0) for saved in (least, price, most))
        below, above = (WIDE * noise_of_mean(saved[:, None]) for saved in (least, most))
        lowest = min(lowest, of_stops) * (1 - own_share)
        return max(lowest - below, 0.0), of_stops, max(highest, of_stops) + above

    def _without(self, cause: Cause) -> Fix | None:
        """Return the fix that takes a cost away on all ranks; None where the recording has nothing of it."""
        assert self._model is not None
        fix = fix_of_all(cause)
        if fix is None or (cause in OF_DEVICES and not self._trace.job.has_device):
            return None
        return fix if fits(self._model, fix) else None

    def _shown(self, job: JobExcess, cause: Cause, moment: Moment | None) -> Iterator[Evidence]:
        """Yield what speaks for a cost besides its replay."""
        if moment is not None:
            share = moment.lost_ns / max(float(job.step_times_ns.mean()), 1.0)
            yield kinds.AllPause(float(len(moment.hit)), float(moment.every() or 0), float(len(job.steps)), share)
        if cause == "profiler":
            yield kinds.Profiler(self._spent_ns(("profiler",)) / 1e3)

    def _of_median_rank(self, cause: Cause) -> float:
        """Of the step, what half of the ranks that nobody is accused of spend themselves on a cause that single ranks
        can have, too; 1 for the others."""
        kind = _HOSTS_SPEND.get(cause)
        if kind is None:
            return 1.0
        # The mean over steps: what stalls all ranks in every eighth step costs an eighth of that in each.
        of_steps = np.sort(self._parts.by_step_ns((kind,))[:, self._shared], axis=1)
        return float(of_steps[:, (of_steps.shape[1] - 1) // 2].mean()) / max(self._step_time_ns, 1.0)


def of_half(of_rank: Floats) -> float:
    """Return what half of the ranks stand still for, at least: the median, or 0 where that lies between two kinds of
    ranks.
    """
    ordered, last = np.sort(of_rank), len(of_rank) - 1
    below, above = float(ordered[last // 2]), float(ordered[(last + 1) // 2])
    return (below + above) / 2 if below >= OTHER_STOPPED * above else 0.0


def _alone(fixes: Mapping[Cause, Fix]) -> list[tuple[Fix]]:
    return [(fix,) for fix in fixes.values()]


def price_range(least_ns: float, most_ns: float) -> kinds.PriceRange:
    """Between what and what a step would be shorter."""
    return kinds.PriceRange(least_ns / 1e3, most_ns / 1e3)


def fix_of_all(cause: Cause) -> Fix | None:
    """Return what takes a cause away on all ranks at once; None where nothing does."""
    row = CAUSES[cause]
    if row.job_wide_operators:
        return Fix(operators=row.job_wide_operators, scale=0.0)
    if row.job_wide_fix_kind is None:
        return None
    # What all ranks do alike is no longer than their peers': it is taken away whole.
    whole = cause in NOTABLE_SHARE and cause != "garbage_collection"
    return Fix(kinds=(row.job_wide_fix_kind,), scale=0.0 if whole else None)


def _model(replays: Replays) -> Model | None:
    """None for recordings of operation types, which have no threads."""
    try:
        model = replays.model()
        return model if "stops" in model.kinds and model.fits_memory() else None
    except (InputError, UsageError):
        return None
