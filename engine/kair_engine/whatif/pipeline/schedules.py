"""Prices published remedies of a pipeline job that are asked for by name: other schedules, microbatches, collectives.

A schedule is a pure function of the job. Its replay has other edges: what a stage runs after what, and whether a
stage waits until what it sends has arrived. A price is the difference between two replays by the same rules, of the
remedy and of 1F1B, so that what the rules leave out cancels.

Sources. Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024): ZB-H1, ZB-H2. Attack of the Bubbles (PipeMorph, NSDI
2026): transfers by the CPU, more warm-up before a slow link. Taming Unbalanced Training Workloads in Deep Learning with
Partial Collective Operations (Li et al., PPoPP 2020).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.causes import RemedyName
from kair_engine.errors import UsageError
from kair_engine.results.whatif import CheckedRemedy, Remedy
from kair_engine.whatif.pipeline.rows import FORWARD_BACKWARD
from kair_engine.whatif.pipeline.times import PipelineTimes, parts_of
from kair_engine.whatif.replay import Graph, plan, replay

SPLIT = 0.5
"""Of a backward computation the share that computes weights' gradients, where nobody recorded it."""
SPLITS = (1 / 3, 2 / 3)
"""The shares that the range of a price goes by."""
TRIED = 17
"""So many numbers of warm-up computations are tried, spread evenly: each costs a replay."""
MERGED = 2
"""Microbatches that become one."""

LARGEST = 1 << 23
"""Operations × lanes that are replayed at once: what bounds memory."""

Operation = tuple[str, int]
"""F, B or W, and the microbatch."""
Pricer = Callable[[RemedyName, PipelineTimes, float], Remedy]
"""Prices the remedy of that name, given the mean replayed step, ns. Raises UsageError where there is no such job."""


@dataclass(frozen=True)
class PipelineJob:
    """What schedules are made of: times in ns."""

    forward: Floats
    """(stages × microbatches × lanes): a lane is a data-parallel rank in a step."""
    backward: Floats
    """The same, of the gradients of activations and weights together."""
    lag: Floats
    """(stages - 1): what a transfer over each link takes once both ends are there."""

    @property
    def stages(self) -> int:
        """Return how many stages there are."""
        return len(self.forward)

    @property
    def microbatches(self) -> int:
        """Return how many of them each rank computes."""
        return int(self.forward.shape[1])


@dataclass(frozen=True)
class Schedule:
    """What every stage runs, in this order."""

    order: tuple[tuple[Operation, ...], ...]
    """Per stage."""
    split: float = 0.0
    """Of backward the share that W takes; 0 where it is not split."""
    blocking: bool = True
    """Whether a stage goes on only once what it sends has arrived."""


def one_forward_one_backward(job: PipelineJob) -> Schedule:
    """Return 1F1B: the first stage warms up by as many forward computations as there are stages, the last by one."""
    return _scheduled(job, range(job.stages, 0, -1))


def zero_bubble(job: PipelineJob, split: float, warm_up: Sequence[int], *, blocking: bool = True) -> Schedule:
    """Return the handcrafted order of Qi et al.: W comes later on stages that warm up less, so all hold as much memory.

    With the warm-up of 1F1B this is ZB-H1: its bubble is (stages - 1)(F + B - W). With that of `twice` it is ZB-H2.
    """
    return replace(_scheduled(job, warm_up, weights=True), split=split, blocking=blocking)


def twice(stages: int, extra: Sequence[int] = ()) -> list[int]:
    """Return the warm-up of ZB-H2, and so many forward computations more for each link that follows a stage."""
    return [2 * (stages - stage) - 1 + sum(extra[stage:]) for stage in range(stages)]


def _scheduled(job: PipelineJob, warm_up: Sequence[int], *, weights: bool = False) -> Schedule:
    order = []
    for first in warm_up:
        runs: list[Operation] = [("F", at) for at in range(min(first, job.microbatches))]
        later = warm_up[0] - first
        for at in range(job.microbatches + later):
            runs += [("B", at)] if at < job.microbatches else []
            runs += [("W", at - later)] if weights and at >= later else []
            runs += [("F", at + first)] if at + first < job.microbatches else []
        order.append(tuple(runs))
    return Schedule(tuple(order))


def rescheduled(job: PipelineJob, split: float) -> Schedule:
    """Return the best of ZB-H2's orders with more warm-up before slow links, transfers by the CPU [PipeMorph].

    Before a link, stages hold up to so many microbatches more as its lag there and back takes; some numbers are tried.
    """
    of_one = float((job.forward + job.backward).mean(axis=(1, 2)).max())
    most = np.minimum(np.ceil(2 * job.lag / of_one), job.microbatches).astype(int).tolist()
    numbers = np.unique(np.linspace(0, max(most), TRIED).round().astype(int)).tolist()
    tried = [
        zero_bubble(job, split, twice(job.stages, [min(more, link) for link in most]), blocking=False)
        for more in numbers
    ]
    return min(tried, key=lambda one: float(spans(job, one).mean()))


def schedule_graph(job: PipelineJob, schedule: Schedule) -> tuple[Graph, Floats]:
    """Return the graph of a schedule, computations first and then transfers, and (nodes × lanes) what each takes."""
    split = schedule.split
    of_kind = {"F": job.forward, "B": job.backward * (1 - split), "W": job.backward * split}
    keys = [(kind, stage, at) for stage, order in enumerate(schedule.order) for kind, at in order]
    number = {key: node for node, key in enumerate(keys)}
    durations = [of_kind[kind][stage, at] for kind, stage, at in keys]
    edges: list[tuple[int, int]] = []
    # What is sent over a link one way goes one after another; by the CPU, several delegates send at once.
    last_sent: dict[tuple[int, str], int] = {}
    for stage, order in enumerate(schedule.order):
        before: list[int] = []
        for kind, at in order:
            own = number[kind, stage, at]
            edges += [(one, own) for one in before]
            before = [own]
            to = stage + {"F": 1, "B": -1, "W": 0}[kind]
            if to == stage or not 0 <= to < job.stages:
                continue
            sent = len(durations)
            durations.append(np.full(job.forward.shape[2], job.lag[min(stage, to)]))
            edges += [(own, sent), (sent, number[kind, to, at])]
            if schedule.blocking:
                edges += [(last_sent[stage, kind], sent)] if (stage, kind) in last_sent else []
                last_sent[stage, kind] = sent
                before.append(sent)
    before_after = np.array(edges, dtype=np.int64).reshape(-1, 2)
    no_group = np.full(len(durations), NONE)
    return Graph(len(durations), before_after[:, 0], before_after[:, 1], no_group), np.stack(durations)


def spans(job: PipelineJob, schedule: Schedule) -> Floats:
    """Return per lane the longest time from the begin of a stage's first computation to the end of its last.

    That is the step once the optimizer of a stage does not wait for the other stages', as in ZB-H2; of 1F1B it is the
    time from the first computation of all to the last.
    """
    nodes = 2 * sum(map(len, schedule.order))
    parts = [
        replace(job, forward=job.forward[:, :, some], backward=job.backward[:, :, some])
        for some in parts_of(job.forward.shape[2], LARGEST // nodes)
    ]
    return np.concatenate([_spans(part, schedule) for part in parts])


def _spans(job: PipelineJob, schedule: Schedule) -> Floats:
    graph, durations = schedule_graph(job, schedule)
    order = plan(graph)
    ends = np.empty_like(durations)
    replayed = np.ascontiguousarray(durations[order.order])
    replay(order, replayed)
    ends[order.order] = replayed
    of_stage = np.cumsum([0, *map(len, schedule.order)])
    first, last = of_stage[:-1], of_stage[1:] - 1
    return np.asarray((ends[last] - ends[first] + durations[first]).max(axis=0))


def merged_microbatches(job: PipelineJob, merged: int, *, lag: float = 1.0) -> PipelineJob:
    """Return the job with so many neighbouring microbatches in one; the lag of a transfer times `lag`.

    A bubble is (stages - 1) / (microbatches + stages - 1) of a step without lags, so fewer microbatches have more of
    it; what they save is the part of each transfer that does not grow with its size.
    """
    begins = np.arange(0, job.microbatches, merged)
    forward, backward = (np.add.reduceat(of, begins, axis=1) for of in (job.forward, job.backward))
    return PipelineJob(forward, backward, job.lag * lag)


def redealt_counts(rates: Floats, microbatches: int, stages: int) -> Ints:
    """Return how many microbatches each rank gets, by what it takes for one: each goes to whom it costs least."""
    counts = np.ones(len(rates), dtype=np.int64)
    for _ in range((microbatches - 1) * len(rates)):
        counts[np.argmin((counts + stages) * rates)] += 1
    return counts


def deferred_last(own: Floats) -> tuple[float, float]:
    """Return the mean step if collectives do not wait for the last rank, and the bound of it [Li et al.].

    `own` is (ranks × steps) without waiting for other ranks. What the last rank adds comes with the next step's
    collective, which waits for it: a rank that is always last saves nothing that way. The bound never waits for it.
    """
    begins, late = np.zeros(len(own)), 0.0
    for of_step in own.T:
        came = begins + of_step
        others, last = np.sort(came)[-2:].tolist()
        begins, late = np.maximum(came, max(others, late)), last
    return float(begins.max()) / own.shape[1], float(np.sort(own, axis=0)[-2].mean())


@dataclass(frozen=True)
class _Recorded:
    """A recording, as far as schedules need it."""

    now_ns: float
    """The mean step, replayed."""
    rest_ns: float
    """Of it, what comes after the last computation."""
    job: PipelineJob
    shape: tuple[int, int]
    """Data-parallel ranks and steps: the lanes."""

    @classmethod
    def of(cls, times: PipelineTimes, now_ns: float) -> "_Recorded":
        """Read what schedules need. Raises UsageError where the recording has no pipeline, or not one that is known."""
        rows = times.rows
        dps, stages, steps = rows.dp_size, rows.pp_size, len(rows.steps)
        if stages < 2:
            raise UsageError("the recording has no pipeline to schedule: all ranks are in one stage")
        of_kind = []
        for kind in FORWARD_BACKWARD:
            chosen = rows.of_type(kind)
            count, rest = divmod(len(chosen), steps * dps * stages)
            if rest or not count or np.any(rows.turn[chosen] != np.tile(np.arange(count), steps * dps * stages)):
                raise UsageError("the recording's ranks and steps compute different numbers of microbatches")
            if np.any(rows.chunk[chosen] > rows.stage[chosen]):
                raise UsageError("the recording has virtual pipeline stages, for which no remedy has a schedule")
            cells = times.own_ns[chosen].reshape(steps, dps, stages, count)
            of_kind.append(np.ascontiguousarray(cells.transpose(2, 3, 1, 0)).reshape(stages, count, dps * steps))
        if of_kind[0].shape != of_kind[1].shape:
            raise UsageError("the recording has not as many backward as forward computations")
        computes = rows.of_type(*FORWARD_BACKWARD)
        last = np.zeros(steps)
        np.maximum.at(last, rows.step[computes], times.ends(times.own_ns.copy())[computes])
        return cls(now_ns, now_ns - float(last.mean()), PipelineJob(of_kind[0], of_kind[1], _lags(times)), (dps, steps))

    def mean_ns(self, of_lanes: Floats) -> float:
        """Return the mean over steps, of each its slowest data-parallel rank."""
        return float(of_lanes.reshape(self.shape).max(axis=0).mean())

    def span_ns(self, job: PipelineJob, schedule: Schedule) -> float:
        """Return the mean of a schedule."""
        return self.mean_ns(spans(job, schedule))

    def price(self, name: RemedyName, spans_ns: Sequence[float], source: str, *assumed: str) -> Remedy:
        """Return the price; of `spans_ns` the first is as assumed, the others are the ends of the range."""
        today_ns = self.span_ns(self.job, one_forward_one_backward(self.job))
        off = (today_ns + self.rest_ns) / self.now_ns - 1
        return _priced(
            name,
            self.now_ns,
            [self.now_ns + one - today_ns for one in spans_ns],
            source,
            *assumed,
            f"by these rules 1F1B is {100 * off:+.1f} % off the replayed recording",
        )


def _priced(name: RemedyName, now_ns: float, after_ns: Sequence[float], source: str, *assumed: str) -> Remedy:
    saved = [(now_ns - one) / 1e3 for one in after_ns]
    return Remedy(
        name,
        after_ns[0] / 1e3,
        saved[0],
        saved_range_us=(min(saved), max(saved)),
        source=source,
        assumed=assumed,
        checked=CHECKED.get(name),
    )


def _lags(times: PipelineTimes) -> Floats:
    """Per link what a transfer takes: of both directions the faster, since a queue makes one of them look slow."""
    rows = times.rows
    result = np.zeros(rows.pp_size - 1)
    for link in range(len(result)):
        found = []
        for kind, stage in (("forward-send", link), ("backward-send", link + 1)):
            sends = rows.of_type(kind)
            sends = sends[(rows.stage[sends] == stage) & times.whole[sends]]
            if len(sends):
                found.append(max(float(np.median(times.own_ns[sends])), 0.0))
        result[link] = min(found, default=0.0)
    return result


def _of_schedule(schedule: Callable[[PipelineJob, float], Schedule], source: str, *assumed: str) -> Pricer:
    """Return what prices a schedule."""

    def price(name: RemedyName, times: PipelineTimes, now_ns: float) -> Remedy:
        of = _Recorded.of(times, now_ns)
        after = [of.span_ns(of.job, schedule(of.job, split)) for split in (SPLIT, *SPLITS)]
        return of.price(
            name, after, source, "half of backward computes weights' gradients (range: 1/3 to 2/3)", *assumed
        )

    return price


def _larger_microbatches(name: RemedyName, times: PipelineTimes, now_ns: float) -> Remedy:
    of = _Recorded.of(times, now_ns)
    if of.job.microbatches < MERGED:
        raise UsageError("the recording has one microbatch, which cannot be merged with another")
    jobs = [merged_microbatches(of.job, MERGED, lag=lag) for lag in (1.0, MERGED)]
    after = [of.span_ns(job, one_forward_one_backward(job)) for job in jobs]
    text = "computations take twice as long, and transfers as long as now (range: to twice as long)"
    return of.price(name, after, "1F1B: bubble (p-1)/(m+p-1)", text)


def _redealt_microbatches(name: RemedyName, times: PipelineTimes, now_ns: float) -> Remedy:
    of = _Recorded.of(times, now_ns)
    (dps, steps), stages = of.shape, of.job.stages
    if dps < 2:
        raise UsageError("the recording has one data-parallel rank, so microbatches cannot be dealt otherwise")
    both = [one.mean(axis=1).reshape(stages, dps, steps) for one in (of.job.forward, of.job.backward)]
    rates = (both[0] + both[1]).max(axis=0).mean(axis=1)
    ends = []
    for dp, count in enumerate(redealt_counts(rates, of.job.microbatches, stages).tolist()):
        forward, backward = (np.repeat(one[:, None, dp], count, axis=1) for one in both)
        job = PipelineJob(forward, backward, of.job.lag)
        ends.append(spans(job, one_forward_one_backward(job)))
    text = "every microbatch of a rank takes that rank's mean; gradients are weighted by the number of microbatches"
    after = of.mean_ns(np.concatenate(ends))
    return replace(of.price(name, [after], "LB-BSP (Chen et al., SoCC 2020)", text), dp_ranks=dps)


def _partial_collectives(name: RemedyName, times: PipelineTimes, now_ns: float) -> Remedy:
    rows = times.rows
    if rows.dp_size < 2:
        raise UsageError("the recording has one data-parallel rank: no collective waits for another")
    own = np.zeros((rows.dp_size, len(rows.steps)))
    for of in times.alike:
        if of.lanes < 2:
            raise UsageError("data-parallel ranks run different operations, so what each takes alone is not known")
        ends = np.ascontiguousarray(times.own_ns[of.at]).reshape(len(of.at), -1)
        replay(of.order, ends)
        own[:, of.steps] = ends.reshape(of.at.shape)[of.last].max(axis=0)
    # With everybody waited for by the same rules, so that only the rule makes a difference.
    everybody = float(own.max(axis=0).mean())
    deferred, bound = deferred_last(own)
    after = [now_ns - everybody + one for one in (deferred, min(bound, deferred))]
    text = "the last rank's gradients count one step later (range: to a job that never waits for the last rank)"
    return replace(
        _priced(name, now_ns, after, "partial collectives (Li et al., PPoPP 2020)", text), dp_ranks=rows.dp_size
    )


_ZERO_BUBBLE, _PIPEMORPH = "Zero Bubble (Qi et al., ICLR 2024)", "PipeMorph (NSDI 2026)"
_UNSYNCHRONISED = "no stage's optimizer waits for another stage's"
PUBLISHED: Final[Mapping[RemedyName, Pricer]] = {
    "zb_h1": _of_schedule(lambda job, split: zero_bubble(job, split, range(job.stages, 0, -1)), _ZERO_BUBBLE),
    "zb_2p": _of_schedule(lambda job, split: zero_bubble(job, split, twice(job.stages)), _ZERO_BUBBLE, _UNSYNCHRONISED),
    "zb_cpu": _of_schedule(
        lambda job, split: zero_bubble(job, split, twice(job.stages), blocking=False), _PIPEMORPH, _UNSYNCHRONISED
    ),
    "reschedule": _of_schedule(rescheduled, _PIPEMORPH, _UNSYNCHRONISED),
    "larger_microbatches": _larger_microbatches,
    "redealt_microbatches": _redealt_microbatches,
    "partial_collectives": _partial_collectives,
}
"""What a person can ask for by its name, and how it is priced."""
CHECKED: Final[Mapping[RemedyName, CheckedRemedy]] = {
    "zb_2p": CheckedRemedy(11, 0.161, 0.318),
    "zb_cpu": CheckedRemedy(11, 0.061, 0.936),
    "reschedule": CheckedRemedy(11, 0.237, 0.991),
}
"""What `validation/real/pipemorph.py` measured on public runs."""
