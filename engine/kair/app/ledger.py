"""Keeps the ledger of a store: what triage predicts, and the outcome of earlier predictions."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kair.app.attempts import places_of, rows_of, rows_of_attempts
from kair.app.identities import all_identities_of, identities_of
from kair.app.step_history import history_of, unsampled
from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.ledger.outcomes import JobHistory, is_settled, outcomes
from kair_engine.ledger.predictions import predictions_of, run_of, with_predictions, with_run
from kair_engine.ledger.rap_sheet import records_in
from kair_engine.ledger.summary import with_track_records
from kair_engine.results.ledger import JobRun, LedgerEntry
from kair_engine.results.triage import TriageResult
from kair_engine.store.ledger import JobLedger, change_ledger, ledger_of, whole_ledger
from kair_engine.trace.digest import recording_digest
from kair_engine.trace.model import Job, KairWarning, short_warning

if TYPE_CHECKING:
    from kair_capture.agent.step_rows import Rows
    from kair_capture.coordinator.step_columns import StepColumns
    from kair_engine.triage.history.rows import StepHistory

_SAME_S: Final = 2
"""Two records of one process's start differ by no more than this, s."""
_LATEST_S: Final = 253_402_300_799
_MOST_PROPOSALS: Final = 1000


@dataclass(frozen=True)
class Ledger:
    """Holds the ledger of a store, as far as it is known today."""

    entries: tuple[LedgerEntry, ...]
    runs: tuple[JobRun, ...]
    warnings: tuple[KairWarning, ...]


def with_ledger(
    job: Job, found: TriageResult, history: "StepHistory | None"
) -> tuple[TriageResult, Callable[[], None]]:
    """Return the verdict with the outcome of earlier prices and the records of its devices, hosts and links; and a
    function that writes its predictions, and the run, into the ledger.

    `found` is a triage of all steps of a stored job, `history` is the job's if it was captured. Faults that have gone
    since are settled first and not predicted again. A store that cannot be written is left as it is. Raises InputError
    if the job's steps are damaged.
    """
    assert job.stored_in is not None
    folder = Path(job.stored_in).parent
    store, name = folder.parent, folder.name
    job = replace(job, name=name)
    run, began = _run_and_begin(job)
    identities = identities_of(job)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    before = ledger_of(store, name)
    known = next((one for one in before.runs if one.run == run), None)
    at = began or (known.at if known is not None else now)
    step_us, samples = (None, None) if history is None else _steps_and_samples(history)
    made = run_of(found, job, run, identities, at, step_us, samples)
    predicted = (*predictions_of(found, job, run, identities, now), *_proposals(folder, run, history))

    def change(kept: JobLedger) -> JobLedger:
        histories = {} if history is None else {name: JobHistory({run: history})}
        settled = outcomes(kept.entries, histories, ())
        return replace(kept, entries=with_predictions(settled, predicted), runs=with_run(kept.runs, made))

    others = [of for other, of in whole_ledger(store)[0].items() if other != name]
    everything = (change(before), *others)
    entries = [entry for of in everything for entry in of.entries]
    runs = [one for of in everything for one in of.runs]
    found = replace(found, findings=with_track_records(found.findings, entries), records=records_in(made, runs))

    def put_down() -> None:
        change_ledger(store, name, change)

    return found, put_down


def looked_up(store: Path) -> tuple[Ledger, Callable[[], None]]:
    """Return the outcome of all predictions by today's jobs, and a function that writes it."""
    of_jobs, warnings = whole_ledger(store)
    histories = dict[str, JobHistory]()
    for name, of in of_jobs.items():
        waiting = [one for one in of.entries if not is_settled(one)]
        if not waiting:
            continue
        try:
            histories[name] = _history_of_job(store / name, {one.run for one in waiting})
        except InputError as error:
            warnings.append(short_warning("not_looked_up", f"of job {name} nothing new is known: {error}"))
    runs = tuple(run for of in of_jobs.values() for run in of.runs)
    before = [one for of in of_jobs.values() for one in of.entries]
    came = dict(zip(before, outcomes(before, histories, runs), strict=True))
    changed = [name for name, of in of_jobs.items() if any(came[one] != one for one in of.entries)]

    def write() -> None:
        for name in changed:
            change_ledger(store, name, lambda kept: _with_outcomes(kept, came))

    return Ledger(tuple(came.values()), runs, tuple(warnings)), write


def _with_outcomes(kept: JobLedger, came: Mapping[LedgerEntry, LedgerEntry]) -> JobLedger:
    return replace(kept, entries=tuple(came.get(one, one) for one in kept.entries))


def _steps_and_samples(history: "StepHistory") -> "tuple[np.ndarray[tuple[int], np.dtype[np.float64]], float | None]":
    samples = history.us["samples"]
    step_us = np.median(history.us["step"], axis=1)
    is_told = len(samples) > 0 and bool((samples > 0).all())
    return step_us, float(np.median(samples.sum(axis=1))) if is_told else None


def _run_and_begin(job: Job) -> tuple[str, str | None]:
    """Return a run's name, and when it began; None if that is unknown."""
    places = places_of(job)
    if places is not None and (names := _attempts(rows_of_attempts(places))):
        return names[max(names)]
    begins = job.step_times.begin_ns
    began = min(begins) if job.absolute_time and begins else 0
    return recording_digest(job), _moment(began / 1e9) if began > 0 else None


def _attempts(rows: "Rows | StepColumns") -> dict[int, tuple[str, str]]:
    """Return each attempt's name and start by its number; the start separates it from jobs of the same name."""
    found = {}
    for number in np.unique(rows["attempt"]).tolist():
        is_of = rows["attempt"] == number
        of = rows if is_of.all() else rows[is_of]
        told = of["process_s"][of["process_s"] > 0]
        began = _moment(int(told.min()) if len(told) else int(of["begin_us"].min()) // 1_000_000)
        found[int(number)] = f"attempt {max(int(number), 1)} of {began[:19].replace('T', ' ')}", began
    return found


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(min(seconds, _LATEST_S), UTC).isoformat(timespec="seconds")


def _history_of_job(folder: Path, runs: set[str]) -> JobHistory:
    """Return the histories of these runs, and of the attempts after the first of them; none of a job that is gone."""
    trace = unsampled(folder) if folder.is_dir() else None
    places = None if trace is None else places_of(trace.job)
    if trace is None or places is None:
        return JobHistory({})
    rows = rows_of(places)
    names = {number: name for number, (name, _) in sorted(_attempts(rows).items())}
    first = min((number for number, name in names.items() if name in runs), default=None)
    wanted = [number for number in names if first is not None and number >= first]
    hosts, devices = _where(trace.job, rows, wanted)
    attempts = {names[number]: history for number in wanted if (history := history_of(trace.job, number)) is not None}
    return JobHistory(
        {name: history for name, history in attempts.items() if len(history.steps)},
        {names[number]: of for number, of in hosts.items()},
        {names[number]: of for number, of in devices.items()},
    )


def _where(
    job: Job, rows: "Rows", attempts: Sequence[int]
) -> tuple[dict[int, frozenset[str]], dict[int, frozenset[str]]]:
    """(hosts, UUIDs of devices) of those attempts of which these are known of all ranks."""
    known = all_identities_of(job)
    hosts, devices = dict[int, frozenset[str]](), dict[int, frozenset[str]]()
    for number in attempts:
        began = defaultdict[int, set[int]](set)
        for rank, process_s in np.unique(rows[rows["attempt"] == number][["rank", "process_s"]]).tolist():
            began[rank].add(process_s)
        there = [
            one
            for one in known
            if any(abs((one.process_s or 0) - process_s) <= _SAME_S for process_s in began.get(one.rank, ()))
        ]
        for of, told in (
            (hosts, {one.rank: one.host for one in there}),
            (devices, {one.rank: one.device.uuid for one in there}),
        ):
            if began and told.keys() >= began.keys() and None not in told.values():
                of[number] = frozenset(name for name in told.values() if name is not None)
    return hosts, devices


def _proposals(folder: Path, run: str, history: "StepHistory | None") -> list[LedgerEntry]:
    """Return what `kair mitigate` proposed to do about the job, with what it said a step would take then."""
    from kair_mitigate.records import FILE, Records

    if not (folder / "mitigate" / FILE).is_file():
        return []
    with suppress(OSError, ValueError):
        return [
            LedgerEntry(
                kind="proposal",
                job=folder.name,
                run=run,
                at=one.proposed_at,
                about=one.action,
                last_step=int(history.steps[-1]) if history is not None and len(history.steps) else 0,
                step_time_us=1e6 * one.figures["now_s"],
                predicted_us=1e6 * (one.figures["now_s"] - one.figures["after_s"]),
                throughput_gain=one.figures["now_s"] / one.figures["after_s"] - 1,
                number=one.number,
                sizes=one.sizes,
                decision=one.decision,
            )
            for one in Records(folder / "mitigate").proposals(_MOST_PROPOSALS)
            if 0 < one.figures.get("after_s", 0.0) < one.figures.get("now_s", 0.0)
        ]
    return []
