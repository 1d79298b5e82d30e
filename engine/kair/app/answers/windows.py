"""The answer of `watch --whatif`: S, M_W and the heat map of S_w of each window of sampled steps."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import kair_engine
from kair.app.places import capture_places
from kair.app.question import Given, Writes
from kair_engine.errors import KairError
from kair_engine.results.watch import WatchResult, high_slowdowns
from kair_engine.results.windows import PricedWindow, WindowsResult
from kair_engine.trace.json_text import kept_json
from kair_engine.trace.model import KairWarning

if TYPE_CHECKING:
    from kair_engine.trace.model import Job, Trace

_MOST: Final = 20
"""How many of the last windows are priced: as many as the status lists."""
_S: Final = 1_000_000_000


def windows(given: Given) -> tuple[WindowsResult, Writes]:
    """Return the last priced windows, and a function that keeps their prices, so that each is computed once."""
    job = given.trace.job
    place = None if job.stored_in is None else capture_places(job.stored_in).windows
    known = (None if place is None else kept_json(place, dict[str, PricedWindow])) or {}
    runs = _runs(given.trace.steps, _begins(job))[-_MOST:]
    priced: dict[str, PricedWindow] = {}
    warnings = []
    for number, steps in enumerate(runs):
        key = _key(job, steps)
        try:
            priced[key] = known.get(key) or _priced(given.trace.select(steps))
        except KairError as error:
            why = f"steps {steps[0]}-{steps[-1]} cannot be priced: {error}"
            warnings.append(KairWarning("window_not_priced", why))
        given.progress(number + 1, len(runs), f"steps {steps[0]}-{steps[-1]}")
    result = WindowsResult(tuple(priced.values()), tuple(warnings))
    if place is None or priced.keys() <= known.keys() or not place.parent.is_dir():
        return result, None
    return result, partial(_write, place, priced)


def with_windows(status: WatchResult, found: WindowsResult) -> WatchResult:
    """Return the status with its priced windows, and an alert for each time that S became high or normal again."""
    others = (one for one in status.alerts if one.kind != "high_slowdown")
    alerts = sorted((*others, *high_slowdowns(found.windows)), key=lambda alert: alert.at)
    warnings = (*status.warnings, *found.warnings)
    return replace(status, alerts=tuple(alerts), priced_windows=found.windows, warnings=warnings)


def _write(place: Path, priced: dict[str, PricedWindow], _: WindowsResult) -> None:
    from kair_engine.store.kept_answers import keep

    keep(place, msgspec.json.encode(priced))


def _begins(job: "Job") -> set[int]:
    """First steps of the windows that the coordinator ordered: two may follow each other without a gap."""
    place = None if job.stored_in is None else capture_places(job.stored_in).status
    status = None if place is None else kept_json(place, WatchResult)
    return set() if status is None else {one.first_step for one in status.sampling.windows}


def _runs(steps: Sequence[int], begins: Collection[int]) -> list[tuple[int, ...]]:
    """Return steps that follow each other, apart where a window begins."""
    runs: list[list[int]] = []
    for step in steps:
        if not runs or step != runs[-1][-1] + 1 or step in begins:
            runs.append([])
        runs[-1].append(step)
    return [tuple(run) for run in runs]


def _key(job: "Job", steps: tuple[int, ...]) -> str:
    """Return what a price rests on: who recorded these steps and how long they took, and the engine's code."""
    from kair_engine.store.kept_answers import code_of

    times, chosen = job.step_times, set(steps)
    rows = zip(times.rank, times.step, times.begin_ns, times.duration_ns, strict=True)
    recorded = sorted(tuple(map(int, row)) for row in rows if row[1] in chosen)
    rests_on = repr((steps, job.ranks, recorded)).encode() + code_of(Path(kair_engine.__file__).parent)
    return blake2b(rests_on, digest_size=16).hexdigest()


def _priced(trace: "Trace") -> PricedWindow:
    from kair_engine.triage.analysis import triage
    from kair_engine.whatif.analysis import model_asked_of, whatif_of

    found = whatif_of(model_asked_of(trace), ())
    return PricedWindow(
        first_step=trace.steps[0],
        last_step=trace.steps[-1],
        at=_ended(trace),
        slowdown=found.slowdown,
        m_w=found.m_w,
        slowest_ranks=found.slowest_ranks,
        by_rank=found.by_rank,
        heatmap=found.heatmap,
        staged=found.is_staged,
        simulation_error=found.simulation_error,
        verdict=triage(trace).verdict,
    )


def _ended(trace: "Trace") -> str:
    """Return when the last step ended, or now where the recording has no time of day."""
    if not trace.job.absolute_time:
        return datetime.now(UTC).isoformat(timespec="milliseconds")
    last = trace.steps[-1]
    ends = (begin + took for (_, step), (begin, took) in trace.job.times_of.items() if step == last)
    return datetime.fromtimestamp(max(ends) / _S, UTC).isoformat(timespec="milliseconds")
