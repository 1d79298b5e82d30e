"""Accuses ranks whose threads compute for longer than their peers', as the kernel measured, and that are waited for.

What a thread computes is not longer for want of a core, as all is on a busy host that a trace shows of it. Threads that
spin while they wait compute, too: nobody waits for those.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints, present
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.excess_table import ExcessTable
from kair_engine.localize.large_delays import stalling
from kair_engine.localize.localization import Localization, also_slow, slow_since
from kair_engine.localize.noise import above_peers, beside_others
from kair_engine.localize.onset import Onset, onset
from kair_engine.localize.persistence import can_accuse, slow_in_class
from kair_engine.ranks import Position, as_positions, rank_at, ranks_at
from kair_engine.results.blame import BlameResult
from kair_engine.stats import TRIM, role_medians, trimmed_mean
from kair_engine.timeline.processor_time import ProcessorTimes

_COMPUTE = CLASSES.index("compute")
CPU_CLASSES = [CLASSES.index(name) for name in ("compute", "input", "host")]
"""Where it shows what they do."""
MIN_STEPS = 8
"""What lasts for this many steps is no spell of noise."""
REALISED: Final = 0.5
"""A rank must take longer, with what it waits for a core, by more than this part of what it computes longer."""


def longer_cpu_time(job: JobExcess, processor: ProcessorTimes | None) -> tuple[Anomaly, ...]:
    """What the tests of stage 1 say of single ranks by what their threads computed; empty if that was not measured.

    Of all steps, or where those say nothing, since some rank began to compute more than before.
    """
    if processor is None or not processor.tells_all or not can_accuse(job):
        return ()
    in_all = _longer(job, processor, may_stall=True)
    if in_all or (begun := begun_beside_peers(job, computed_ns(job, processor))) is None:
        return in_all
    later = replace(job, steps=job.steps[begun.at :])
    return tuple(replace(one, since=job.steps[begun.at].step) for one in _longer(later, processor))


def _longer(job: JobExcess, processor: ProcessorTimes, *, may_stall: bool = False) -> tuple[Anomaly, ...]:
    """Single ranks that compute for longer in every step, or now and then if they `may_stall`."""
    table = _table(job, processor)
    steady = (one for code in present(job.role) for one in slow_in_class(table, _COMPUTE, code))
    alone = (one for one in (*steady, *(stalling(table) if may_stall else ())) if len(one.positions) == 1)
    return tuple(one for one in alone if _takes_longer(job, processor, one))


def since_lacking(found: Localization, processor: ProcessorTimes | None) -> Localization:
    """`found`, where it has nobody, with whoever is slow since it lacks cores: by the clock noise may hide that."""
    job = found.job
    if processor is None or not processor.tells_all or found.anomalies or found.begun is not None:
        return found
    begun = begun_beside_peers(job, as_in(job, processor, processor.delay_ns))
    return found if begun is None else slow_since(found, begun)


def begun_beside_peers(job: JobExcess, values_ns: Floats) -> Onset | None:
    """Since when some rank has more of (steps × ranks) than before, beside its role's other ranks."""
    beside = np.zeros_like(values_ns)
    for code in present(job.role):
        members = job.role == code
        # Of two ranks the median of both would halve what one of them changes by.
        beside[:, members] = beside_others(values_ns[:, members])
    return onset(beside, job.step_time_ns)


def _takes_longer(job: JobExcess, processor: ProcessorTimes, found: Anomaly) -> bool:
    """Whether the rank, with what it computes and lacks a core for, takes longer than its peers by much of the former.

    One that has a core for itself can compute longer than those that share one, and be done before them.
    """
    (place,) = found.positions
    members = _members(job, place)
    at, trim = int(np.searchsorted(members, place)), 0.0 if found.hit else TRIM
    computed, lacked = (as_in(job, processor, of)[:, members] for of in (processor.cpu_ns, processor.delay_ns))
    longer, both = (float(trimmed_mean(above_peers(of, at), trim)) for of in (computed, computed + lacked))
    return both > REALISED * longer


def with_kernel_evidence(found: Localization, blamed: BlameResult, longer: Sequence[Anomaly]) -> Localization:
    """`found`, with an anomaly more for each that does something `longer`, is waited for, and was not found."""
    for one in longer:
        (place,) = one.positions
        if not any(place in anomaly.positions for anomaly in found.anomalies) and _awaited(found.job, blamed, place):
            found = also_slow(found, _in_its_class(found.job, place, one))
    return found


def _awaited(job: JobExcess, blamed: BlameResult, place: Position) -> bool:
    """Whether waiting is for this rank no less than for the mean one of its role."""
    imposed = {row.rank: row.blamed_us for row in blamed.by_rank}
    of_role = [imposed.get(rank, 0.0) for rank in ranks_at(job.ranks, as_positions(_members(job, place)))]
    own = imposed.get(rank_at(job.ranks, place), 0.0)
    return own > 0 and own * len(of_role) >= sum(of_role)


def _members(job: JobExcess, place: Position) -> Ints:
    return np.flatnonzero(job.role == job.role[place])


def computed_ns(job: JobExcess, processor: ProcessorTimes) -> Floats:
    """(steps × ranks): what the training threads computed."""
    return as_in(job, processor, processor.cpu_ns)


def as_in(job: JobExcess, processor: ProcessorTimes, values: Floats) -> Floats:
    """(steps × ranks) of the job of what was measured; of steps in which that is not known, the rank's median."""
    rows = np.searchsorted(processor.ranks, job.ranks)
    columns = np.searchsorted(processor.steps, [step.step for step in job.steps])
    of_job = values[rows][:, columns].T
    return np.where(np.isnan(of_job), np.nanmedian(of_job, axis=0), of_job)


def _table(job: JobExcess, processor: ProcessorTimes) -> ExcessTable:
    """What was computed as all that there is of compute time, of the part of each step that threads had a core for.

    Who lacks a core for two thirds of the step computes what it has to in a third of it: what ranks differ by is a
    share of that. Of a few steps it is one of the step: next to busy neighbours a healthy rank computes longer for a
    spell.
    """
    computed = computed_ns(job, processor)
    excess, work = np.zeros_like(job.by_step_ns), np.zeros_like(job.work_ns)
    excess[:, _COMPUTE], work[_COMPUTE] = computed - role_medians(computed, job.role), np.median(computed, axis=0)
    ran, lacked = float(np.nanmean(processor.cpu_ns)), float(np.nanmean(processor.delay_ns))
    running = ran / max(ran + lacked, 1.0) if len(job.steps) >= MIN_STEPS else 1.0
    return ExcessTable(job.role, job.unit, excess, running * job.step_times_ns, work, {}, job.on_device)


def _in_its_class(job: JobExcess, place: Position, found: Anomaly) -> Anomaly:
    """As a slowness in what the rank loses most in by the clock: in steps with an event, or in all since its onset."""
    members = _members(job, place)
    of_class = np.nan_to_num(job.by_step_ns[:, CPU_CLASSES][:, :, members], nan=0.0)
    at = int(np.searchsorted(members, place))
    apart = [above_peers(of_class[:, row], at) for row in range(len(CPU_CLASSES))]
    hit, later = list(found.hit), [found.since is None or step.step >= found.since for step in job.steps]
    lost = [float(of[hit].sum()) / len(of) if hit else float(trimmed_mean(of[later], TRIM)) for of in apart]
    most = int(np.argmax(lost))
    return replace(found, class_index=CPU_CLASSES[most], excess_ns=max(lost[most], 0.0))
