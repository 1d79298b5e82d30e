"""Logs Kair's findings during training to the script's experiment tracker: `kair/lost_ms` and `kair/rank`.

A separate thread reads the coordinator's status in the job's folder of the store: training waits for neither the store
nor the tracker. No tracker is imported here; the script passes its own.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kair_capture.job.failing import described, warn
from kair_capture.settings import SettingsError, settings_of

Log = Callable[[dict[str, float], int], object]
"""Takes values by name, and their step."""
LOST: Final = "kair/lost_ms"
RANK: Final = "kair/rank"
_STEP: Final = "kair/step"
EVERY_S: Final = 5.0
_PAUSE: Final = 200
"""Pause in multiples of the reading time: the status of thousands of ranks is large and slow to parse."""
_LARGEST: Final = 64 << 20


def log_to(tracker: object, job: str | None = None) -> None:
    """Log what the slowest rank costs, and which one it is, after each new look of the coordinator.

    `tracker` is the module `wandb` or `mlflow` of a script that has a run, or a function of values and a step. Ranks
    without a run log nothing. It never raises: failures are warnings.
    """
    try:
        settings = settings_of(job=job)
        if settings.disabled:
            return
        log = tracker if callable(tracker) else _log_of(tracker)
        store = os.environ.get("KAIR_STORE")
        if log is None:
            if settings.rank == 0:
                warn("nothing is logged: the tracker has no run in this process; call it after wandb.init or start_run")
        elif not store or "://" in store:
            warn("nothing is logged: KAIR_STORE names no folder, where the coordinator's status would be")
        else:
            Follower(Path(store).absolute() / settings.job / "capture" / "status.json", log).start()
    except SettingsError as error:
        warn(f"nothing is logged: {error}")
    except Exception as error:  # whatever it is, training continues
        warn(f"nothing is logged: {described(error)}")


def _log_of(tracker: Any) -> Log | None:  # noqa: ANN401
    """Return a function that logs into this process's run, that of the calling thread; None without a run."""
    if hasattr(tracker, "log_metrics"):
        active = tracker.active_run()
        if active is None:
            return None
        run_id = active.info.run_id
        return lambda values, step: tracker.log_metrics(values, step=step, run_id=run_id)
    run = tracker.run
    if run is None:
        return None
    run.define_metric("kair/*", step_metric=_STEP)
    # Without a commit the script's own count of steps is unchanged.
    return lambda values, step: run.log({**values, _STEP: step}, commit=False)


class Follower(threading.Thread):
    """Reads the status as long as the process lives, and logs each look once."""

    def __init__(self, status: Path, log: Log, *, every_s: float = EVERY_S) -> None:
        super().__init__(name="kair-tracker", daemon=True)
        self._status, self._log, self._every_s = status, log, every_s
        earlier = values_of(_read(status))
        self._logged = None if earlier is None else earlier[1]  # of an earlier run

    def run(self) -> None:
        """Look every few seconds. An error of the tracker ends it with a warning."""
        while True:
            began = time.monotonic()
            try:
                self.look()
            except Exception as error:  # whatever it is, training continues
                warn(f"no more is logged: {described(error)}")
                return
            time.sleep(max(self._every_s, _PAUSE * (time.monotonic() - began)))

    def look(self) -> None:
        """Log the status if its step is new."""
        found = values_of(_read(self._status))
        if found is not None and found[1] != self._logged:
            values, self._logged = found
            self._log(values, self._logged)


def values_of(status: Mapping[str, Any]) -> tuple[dict[str, float], int] | None:
    """Return the costliest rank's values in a status, and the step; None if nothing was compared yet.

    The loss is 0 if ranks were compared and none is slow; then there is no rank.
    """
    step, ranks = status.get("step"), status.get("ranks")
    if not isinstance(step, int) or step < 0 or not isinstance(ranks, list):
        return None
    priced = (status.get("triage") or {}).get("slow") or ()
    lasting = [one for one in priced if one.get("until") is None]
    costs = [(one["time_lost_us_per_step"], rank) for one in lasting for rank in one["ranks"]]
    # Before triage has answered: the coordinator's own measurement.
    costs = costs or [(one.get("excess_us"), one["rank"]) for one in ranks if one.get("slow")]
    costs = [(cost, rank) for cost, rank in costs if isinstance(cost, int | float) and math.isfinite(cost)]
    if costs:
        cost, rank = max(costs, key=lambda one: one[0])
        return {LOST: cost / 1000, RANK: float(rank)}, step
    if any(one.get("slow") for one in ranks) or all(one.get("self_time_excess") is None for one in ranks):
        return None
    return {LOST: 0.0}, step


def _read(path: Path) -> dict[str, Any]:
    """Return the status; empty if it is missing or being replaced."""
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        read = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}
