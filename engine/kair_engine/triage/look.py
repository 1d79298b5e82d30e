"""The first arrows: from a trace to its step tables, and from these to who is slow by the tests of stage 1.

Finds the step that hides all others: it takes longer than they do together.

The mean cost of a step is then mostly the cost of that one, and so are its shares. A single step accuses no rank,
whoever was late in it.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from kair_engine.arrays import Ints, zero_for_nan
from kair_engine.blame.analysis import Tally, tally_detail, tally_step
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FEWEST_STEPS
from kair_engine.localize.batch_shares import without_larger_shares, without_new_sizes
from kair_engine.localize.excess import CLASSES, JobExcess, JobRoles, StepExcess, of_job, step_excess
from kair_engine.localize.large_step_detail import excess_and_detail
from kair_engine.localize.localization import Localization, conclude, step_time_ns, steps_needed
from kair_engine.localize.rank_times import RankTimes, rank_times
from kair_engine.localize.unnamed_collectives import with_unnamed_collectives
from kair_engine.ranks import Rank
from kair_engine.results.warning_kinds import GiantStep
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.host_time import counted_times, with_both_times
from kair_engine.timeline.inputs import batch_bytes, samples_of
from kair_engine.timeline.recording_begins import without_staggered_begin
from kair_engine.trace.batches import TWICE_AT_A_TIME, over_parts
from kair_engine.trace.large_steps import LargeStep, of_steps
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.operations import Operations
from kair_engine.triage.findings import KernelEvidence
from kair_engine.triage.ranks.cpu_limits import cpu_limits
from kair_engine.triage.ranks.kernel_times import measured_signals
from kair_engine.triage.replays import Replays, read_once
from kair_engine.whatif.analysis import share_replayed, units

MOST_OF_WAITING: Final = 2 / 3
"""A step went by in waiting for one rank if its peers waited for that one for this part of it; and all waiting is for
one rank if it is the last one for this part of it."""


@dataclass(frozen=True)
class StepTables:
    """What stages 1 and 3 need of every step: all are read once."""

    excess: JobExcess
    tally: Tally
    parts: StepPartsTally
    """Where the time of steps goes; of the first of them."""
    together: Ints | None
    """Of large steps, who is replayed together."""


@dataclass(frozen=True)
class Looked:
    """A trace as it is judged, and what stage 1 finds in it."""

    trace: Trace
    replays: Replays
    tables: StepTables
    kernel: KernelEvidence
    found: Localization
    set_aside: tuple[KairWarning, ...]
    """About steps that are not judged: each outweighs all others, they are the first of other batch sizes, or not all
    ranks' profilers had begun."""
    explained: tuple[KairWarning, ...] = ()
    """Who is slow by no more than by the samples that it is given beyond its peers."""

    @property
    def step_time_ns(self) -> float:
        """The median step's."""
        return step_time_ns(self.trace, self.tables.excess)


def look(trace: Trace) -> Looked:
    """Who is slow by the tests.

    First a step that outweighs all others is set aside, and collectives without names are matched by their order.
    """
    trace, staggered = without_staggered_begin(trace)
    trace, set_aside = without_new_sizes(trace)
    set_aside = (*staggered, *set_aside)
    while True:
        trace = read_once(trace)
        replays = Replays(trace)
        tables = step_tables(trace, replays)
        if (rest := without_dominant_step(trace, tables.excess)) is not None:
            trace, giant = rest
            set_aside = (*set_aside, giant)
            continue
        kernel = _kernel_evidence(trace, tables.excess)
        found = conclude(
            tables.excess, measured_signals(tables.excess, kernel.processor, kernel.given, kernel.held), trace.job
        )
        if (marked := with_unnamed_collectives(trace, found)) is None:
            found, explained = without_larger_shares(found, kernel.samples)
            return Looked(trace, replays, tables, kernel, found, set_aside, explained)
        trace = marked


def step_tables(trace: Trace, replays: Replays) -> StepTables:
    """Read every step once; `replays` keep those that are replayed anyway."""
    # What stays in memory is read at one go: steps that share their codes are replayed together.
    first = next(each_step(trace), None) if trace.memory is not None else None
    of, tally, steps = JobRoles.of(trace, first), Tally.of(trace, keep_paths=False), list[StepExcess]()
    divided, together = StepPartsTally.of(trace, of.role), None
    look = partial(_look_at, of=of, empty=tally.empty(), divided=divided.empty())
    if trace.workers is None:
        look = partial(look, keep=replays.add)
    for excesses, part, parts_of_steps, units_of_part in over_parts(trace, look, TWICE_AT_A_TIME):
        steps += excesses
        tally.add(part)
        divided.add(parts_of_steps)
        together = units_of_part if together is None else together
    return StepTables(of_job(trace, of, steps), tally, divided, together)


def _look_at(
    part: Trace,
    *,
    of: JobRoles,
    empty: Tally,
    divided: StepPartsTally,
    keep: Callable[[Synchronisation], None] | None = None,
) -> tuple[list[StepExcess], Tally, StepPartsTally, Ints | None]:
    together: list[Ints | None] = []
    tally, divided = empty.empty(), divided.empty()

    def look(ops: Operations) -> StepExcess:
        sync = synchronise(ops)
        if keep is not None:
            keep(sync)
        divided.look(ops, sync)
        tally_step(tally, sync, of.role_in(ops))
        return step_excess(rank_times(ops), sync, of)

    def of_ranks(ops: Operations) -> RankTimes:
        divided.look_at_some(ops)
        return rank_times(ops)

    def look_large(step: LargeStep, times: list[RankTimes]) -> StepExcess:
        excess, seen = excess_and_detail(step, times, of)
        tally_detail(tally, seen, of)
        divided.look_at_meetings(seen.sync)
        together.append(units(seen.sync, of.ranks, share_replayed(part)))
        return excess

    excesses = list(of_steps(part, look, of_ranks, look_large, TWICE_AT_A_TIME))
    return excesses, tally, divided, next(iter(together), None)


def _kernel_evidence(trace: Trace, job: JobExcess) -> KernelEvidence:
    counted, steps = counted_times(trace), np.array([step.step for step in job.steps])
    given, samples = batch_bytes(trace, steps, job.ranks), samples_of(trace, steps, job.ranks)
    return KernelEvidence(with_both_times(counted), counted, cpu_limits(trace.job, job, counted), given, samples)


def without_dominant_step(trace: Trace, job: JobExcess) -> tuple[Trace, KairWarning] | None:
    """Return the trace without that step, and a warning; None if no step hides others, or if too few would be left."""
    lengths = job.step_times_ns
    at, others_ns = int(lengths.argmax()), float(lengths.sum() - lengths.max())
    if float(lengths[at]) <= others_ns or len(lengths) - 1 < (steps_needed(job) or FEWEST_STEPS):
        return None
    longest, others = job.steps[at].step, len(lengths) - 1
    ranks = _waited_for(job, at)
    took = zero_for_nan(job.by_step_ns[at])[:, np.isin(job.ranks, ranks)].sum(axis=1)
    about = CLASSES[int(took.argmax())] if ranks else None
    told = GiantStep(
        step=longest,
        length_us=float(lengths[at]) / 1e3,
        others_us=others_ns / 1e3,
        others=others,
        ranks=ranks,
        about=about,
    )
    return trace.select([step for step in trace.steps if step != longest]), told


def _waited_for(job: JobExcess, at: int) -> tuple[Rank, ...]:
    """Return the rank that most of the step went by in waiting for; none where that is no single one."""
    late, ranks = job.steps[at].late, len(job.ranks)
    waited = np.bincount(late.rank, weights=late.wait_ns, minlength=ranks)
    most, of_step = int(waited.argmax()), job.steps[at].step_time_ns * max(ranks - 1, 1)
    return (Rank(int(job.ranks[most])),) if waited[most] >= MOST_OF_WAITING * max(of_step, 1.0) else ()
