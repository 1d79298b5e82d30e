"""`kair confirm`: delays ranks of a running job at random, to find which of them holds it up."""

import os
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal

from kair.app.places import is_mirror
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.errors import InputError, UsageError
from kair_engine.results.confirm import ConfirmRun
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument, Option

if TYPE_CHECKING:
    from kair_capture.places import JobPlaces

RENDERER = "kair_tui.render.confirm"
Where = Literal["after_input", "before_forward", "before_backward", "before_optimizer", "each_micro_batch"]
"""The points of a step at which capture can delay a rank."""
_NOTHING: Final = MappingProxyType[str, str]({})
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 30.0
"""A coordinator that is silent for this long has ended, and its delays with it."""


def run(
    session: OpenStore,
    *,
    job: Annotated[str | None, Argument("A job that has a coordinator. Default: $KAIR_JOB.", offers=job_names)] = None,
    rank: Annotated[
        str | None,
        Option("--rank", "The accused ranks: 5, or 4,5. Default: the slow rank with the largest excess.", metavar="N"),
    ] = None,
    everybody: Annotated[
        bool, Option("--all", "Accuse no rank: delay a random half of the ranks, and judge each.")
    ] = False,
    place: Annotated[Where, Option("--place", "Where in the step ranks are delayed.")] = "before_forward",
    dose: Annotated[
        float | None,
        Option(
            "--dose",
            "The delay in ms. Default: half of the excess, within 1 to 5 % of the step.",
            metavar="MS",
            minimum=0,
        ),
    ] = None,
    budget: Annotated[
        str, Option("--budget", "The share of the job's time so far that delays may cost.", metavar="SHARE")
    ] = "1%",
    steps: Annotated[int, Option("--steps", "The most steps that it may take.", metavar="N", minimum=1)] = 400,
    worth: Annotated[
        bool, Option("--worth", "If it is confirmed, measure what a fix is worth, in as many steps again.")
    ] = False,
    stop: Annotated[bool, Option("--stop", "End the delays of this job now.")] = False,
    last: Annotated[
        bool, Option("--last", "Delay no rank: show what the last delays found, or the running ones find so far.")
    ] = False,
) -> ConfirmRun:
    """Return what the delays showed. Raises UsageError, or InputError if no rank may be delayed or nothing was found.

    Ctrl-C ends the delays.
    """
    from kair_capture.places import JobPlaces
    from kair_capture.settings import safe_name

    name = job or os.environ.get("KAIR_JOB")
    if not name:
        raise UsageError("which job? kair confirm JOB, or $KAIR_JOB", "kair confirm job123 --rank 5")
    if everybody and (rank is not None or worth):
        raise UsageError(f"--all accuses nobody: leave --{'worth' if rank is None else 'rank'} out")
    if last:
        if everybody or rank is not None or worth or stop:
            raise UsageError("--last only shows: leave --rank, --all, --worth and --stop out")
        found: ConfirmRun = session.open(name).ask(Question.of("confirm")).result
        return found
    places = JobPlaces(session.root, safe_name(name))
    if stop:
        return stopped(session, places)
    asked = {
        "ranks": "all" if everybody else rank or "",
        "place": place,
        "dose_us": "" if dose is None else f"{dose * 1e3:.0f}",
        "budget": budget,
        "steps": str(steps),
        "worth": "1" if worth else "0",
    }
    state = ask_coordinator(places, "start", asked)
    try:
        state = _followed(session, places, state)
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or a signal that ends the program
        ask_coordinator(places, "stop")
        raise
    run = _result(session, places, state)
    if run is None or not run.effects:
        raise InputError(f"nothing was found: {state.get('why') or 'it ended'}")
    return run


def stopped(session: OpenStore, places: "JobPlaces") -> ConfirmRun:
    """End the delays of a job, and return their results. Raises InputError if no rank is being delayed."""
    run = _result(session, places, ask_coordinator(places, "stop"))
    if run is None:
        raise InputError(f"no answer is kept of job {places.job}")
    return run


def _followed(session: OpenStore, places: "JobPlaces", state: Mapping[str, str]) -> Mapping[str, str]:
    """Wait until the delays are over, report progress, and return the last state."""
    heard = time.monotonic()
    while state.get("state") == "running":
        try:
            state = ask_coordinator(places, "look")
            heard = time.monotonic()
        except InputError:
            if time.monotonic() - heard > _PATIENCE_S:
                raise
        session.progress(int(state.get("covered", 0)), int(state.get("steps", 0)), _progress(state))
        time.sleep(_LOOK_S)
    return state


def _progress(state: Mapping[str, str]) -> str:
    """Return a line such as `steps: rank 5, before forward, d 4 ms, cost 12 ms`."""
    from kair_tui.render.units import duration

    who = f"rank {state['ranks']}" if state.get("ranks") else "all ranks"
    needed = f", about {state['needed']} more needed" if state.get("needed", "0") != "0" else ""
    dose, spent = (duration(float(state.get(name, 0))) for name in ("dose_us", "spent_us"))
    where = state.get("place", "").replace("_", " ")
    what = "worth of a fix" if state.get("phase") == "sweep" else where
    return f"steps: {who}, {what}, d {dose}, cost {spent}{needed}"


def _result(session: OpenStore, places: "JobPlaces", state: Mapping[str, str]) -> ConfirmRun | None:
    """Return what the coordinator wrote. In a store behind a URL it arrives some seconds later, so wait for it."""
    until = time.monotonic() + (_PATIENCE_S if is_mirror(places.store) and state.get("file") else 0)
    while True:
        found = session.confirmed(places.job, state["file"]) if state.get("file") else None
        if (found is not None and found.state == "over") or time.monotonic() > until:
            return found
        time.sleep(_LOOK_S)


def ask_coordinator(places: "JobPlaces", do: str, asked: Mapping[str, str] = _NOTHING) -> Mapping[str, str]:
    """Return the coordinator's answer to `start`, `plan` (what `start` would do), `look` or `stop`.

    Raises InputError if it refuses or cannot be reached.
    """
    from kair_capture.coordinator.endpoint import ask
    from kair_capture.wire import Kind, Values
    from kair_tui.commands.capture_control import coordinator_of, reaching

    address, key = coordinator_of(places)
    with reaching(address):
        answer = ask(address, key, Kind.CONFIRM, Values({"do": do, **asked}), Values)
    if answer.why_not:
        raise InputError(answer.why_not if do == "stop" else f"no rank is delayed: {answer.why_not}")
    return answer.values
