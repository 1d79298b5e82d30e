"""Turns the predictions of a triage into entries of the ledger, and the triaged run into one for later comparison."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.causes import CAUSES
from kair_engine.ledger.noise import median_noise
from kair_engine.results.ledger import JobRun, LedgerEntry, RunOfRank
from kair_engine.results.triage import Finding, RankedRank, TriageResult
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.model import Job

_FRAMEWORKS: Final = {"kineto": "torch", "nsys": "torch", "xplane": "xla"}


def predictions_of(
    found: TriageResult, job: Job, run: str, identities: Mapping[int, RankIdentity], at: str
) -> tuple[LedgerEntry, ...]:
    """Return the predicted savings per step for each finding.

    A hung job has no step time to save, and effects that only recorded steps have end with the recording.
    """
    return tuple(
        _prediction(one, found.step_time_us, job, run, identities, at)
        for one in found.findings
        if one.time_lost_us_per_step > 0 and not (CAUSES[one.cause].stops_job or CAUSES[one.cause].of_recording)
    )


def _prediction(  # noqa: PLR0917  (one call)
    one: Finding, step_time_us: float, job: Job, run: str, identities: Mapping[int, RankIdentity], at: str
) -> LedgerEntry:
    devices = (identities[rank].device.uuid for rank in one.ranks if rank in identities)
    return LedgerEntry(
        kind="finding",
        job=job.name,
        run=run,
        at=at,
        about=one.cause,
        ranks=one.ranks,
        hosts=one.hosts,
        devices=tuple(dict.fromkeys(uuid for uuid in devices if uuid is not None)),
        part=next((each.part for each in one.explanations if each.word == "explains"), None),
        pattern=one.pattern,
        since=one.since,
        first_step=min(one.steps, default=0),
        last_step=max(one.steps, default=0),
        step_time_us=step_time_us,
        predicted_us=one.time_lost_us_per_step,
        throughput_gain=one.throughput_gain,
        priced_by=one.priced_by,
    )


def with_predictions(kept: Sequence[LedgerEntry], made: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """Return the kept entries with the new ones.

    An equal prediction counts once: while the fault is present, the newer of two about the same steps stands; once the
    job ran without it, the earlier one does.
    """
    entries = list(kept)
    for one in made:
        at = next((at for at, other in enumerate(entries) if _is_same(one, other)), None)
        if at is None:
            entries.append(one)
        elif entries[at].came == "open":
            entries[at] = replace(one, since=entries[at].since if one.since is None else one.since)
    return tuple(entries)


def _is_same(one: LedgerEntry, other: LedgerEntry) -> bool:
    """Return whether both are about one fault of one run, or about one proposal of a job."""
    if (one.kind, one.job) != (other.kind, other.job):
        return False
    if one.kind == "proposal":
        return (one.number, one.at) == (other.number, other.at)
    if (one.run, one.ranks) != (other.run, other.ranks) or (not one.ranks and one.about != other.about):
        return False
    # A fault that came back has steps after those that ran without it.
    return other.came == "open" or other.from_step is None or one.begin < other.from_step


def run_of(  # noqa: PLR0917  (one call)
    found: TriageResult,
    job: Job,
    run: str,
    identities: Mapping[int, RankIdentity],
    at: str,
    step_us: Floats | None = None,
    samples: float | None = None,
) -> JobRun:
    """Return the run of a triage of all steps; `step_us` are the step times of its history (steps), if any, and
    `samples` the total that its ranks take in a step.
    """
    if step_us is None or not len(step_us):
        step_us = recorded_steps(job)
    accused = {rank for one in found.findings if one.pattern != "job_wide" for rank in one.ranks}
    causes = defaultdict[str, set[str]](set)
    for one in found.findings:
        causes[one.cause].update(one.hosts)
    framework = next((one.framework for one in found.findings if one.framework), None) or _FRAMEWORKS.get(job.format)
    rows = max(len(job.ranks) * len(job.steps), 1)
    return JobRun(
        job=job.name,
        run=run,
        at=at,
        world_size=job.world_size,
        framework=framework,
        samples=samples,
        operations=job.operations / rows if job.operations else None,
        step_time_us=float(np.median(step_us)) if len(step_us) else found.step_time_us,
        noise_us=median_noise(step_us),
        steps=len(step_us),
        causes={cause: tuple(sorted(hosts)) for cause, hosts in sorted(causes.items())},
        ranks=tuple(
            _run_of_rank(one, job, identities, step_us=max(found.step_time_us, 1e-3), accused=one.rank in accused)
            for one in sorted(found.ranking, key=lambda one: one.rank)
        ),
    )


def _run_of_rank(
    one: RankedRank, job: Job, identities: Mapping[int, RankIdentity], *, step_us: float, accused: bool
) -> RunOfRank:
    known = identities.get(one.rank, RankIdentity(one.rank))
    host = known.host or job.hosts.get(one.rank)
    device = known.device.uuid
    if device is None and known.device.pci is not None and host is not None:
        device = f"{host} {known.device.pci}"
    return RunOfRank(
        rank=one.rank,
        role=one.role,
        host=host,
        device=device,
        nics=known.nics,
        driver=known.versions.get("driver"),
        excess_share=one.self_time_excess_us / step_us,
        accused=accused,
    )


def recorded_steps(job: Job) -> Floats:
    """Return the time of every recorded step, µs: the median of its ranks."""
    of = job.step_times
    steps, durations = np.array(of.step, np.int64), np.array(of.duration_ns, np.float64) / 1e3
    return np.array([np.median(durations[steps == step]) for step in np.unique(steps)])


def with_run(kept: Sequence[JobRun], made: JobRun) -> tuple[JobRun, ...]:
    """Return the kept runs with this one, which replaces an earlier record of it."""
    return (*(one for one in kept if (one.job, one.run) != (made.job, made.run)), made)
