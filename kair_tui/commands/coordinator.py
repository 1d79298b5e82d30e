"""`kair coordinator`: runs the process to which a job's agents report, until it is stopped."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from kair_engine.errors import InputError, UsageError
from kair_tui.cli.ending import ended_by_signals
from kair_tui.cli.options import Option
from kair_tui.cli.output import say
from kair_tui.commands.capture_control import places_of

JOB = Option("--job", "The job's name. Default: $KAIR_JOB.", metavar="NAME")


def run(
    store: Path,
    *,
    job: Annotated[str | None, JOB] = None,
    listen: Annotated[
        str | None,
        Option(
            "--listen",
            "The address for agents; other hosts need 0.0.0.0. Default: 127.0.0.1:7433, or a free port"
            " where that one is taken.",
            metavar="HOST:PORT",
        ),
    ] = None,
    advertise: Annotated[
        str | None, Option("--advertise", "This host's name for agents. Default: the system's.", metavar="HOST")
    ] = None,
    key: Annotated[
        Path | None,
        Option("--key", "The file with the job's key. Default: one in the job's folder in the store.", metavar="FILE"),
    ] = None,
    max_overhead: Annotated[
        str, Option("--max-overhead", "How much of the job's time sampling may take.", metavar="SHARE")
    ] = "1%",
    metrics: Annotated[
        str | None,
        Option("--metrics", "The address that serves /metrics to Prometheus. Default: none.", metavar="HOST:PORT"),
    ] = None,
    alert_webhook: Annotated[
        str | None,
        Option(
            "--alert-webhook",
            "The URL that gets each alert as JSON. Default: $KAIR_ALERT_WEBHOOK, which no list of processes shows.",
            metavar="URL",
        ),
    ] = None,
    leave_after: Annotated[
        float | None,
        Option(
            "--leave-after",
            "End so many seconds after the job; where none begins, after ten minutes or later. Default: stay.",
            metavar="S",
            minimum=0,
        ),
    ] = None,
    allow_delays: Annotated[
        bool, Option("--allow-delays", "Let kair confirm delay ranks of the job, as far as its budget goes.")
    ] = False,
    whatif: Annotated[
        bool,
        Option("--whatif", "Price each sampled window (see kair watch --whatif) in a low-priority process."),
    ] = False,
    quiet: Annotated[bool, Option("-q, --quiet", "Print no messages.")] = False,
) -> int:
    """Run until SIGTERM or Ctrl-C. Raises UsageError, or InputError if one runs already."""
    from kair_capture.coordinator.coordinator import Coordinator, CoordinatorSettings
    from kair_capture.files import BusyError
    from kair_capture.places import DEFAULT_PORT
    from kair_capture.wire import KeyFileError

    settings = CoordinatorSettings(
        places=places_of(store, job, "kair coordinator --job job123"),
        listen=("127.0.0.1", DEFAULT_PORT) if listen is None else _address(listen, "--listen"),
        may_move=listen is None,
        advertise=advertise,
        key_file=key,
        max_overhead=share_of(max_overhead),
        metrics=None if metrics is None else _address(metrics, "--metrics"),
        alert_webhook=_webhook(alert_webhook or os.environ.get("KAIR_ALERT_WEBHOOK", "")),
        leave_after_s=leave_after,
        stalled_after_s=_stalled_after(os.environ.get("KAIR_STALLED_AFTER", "")),
        allow_delays=allow_delays,
    )
    if whatif:
        watch = ("watch", settings.places.job, "--whatif", "--json", "--store", str(store))
        settings = replace(settings, pricing=(sys.executable, "-m", "kair_tui", *watch))
    triage = ("triage", settings.places.job, "--json", "--store", str(store))
    settings = replace(settings, judging=(sys.executable, "-P", "-m", "kair_tui", *triage))
    try:
        coordinator = Coordinator(settings, (lambda _: None) if quiet else lambda text: say(f"kair: {text}"))
    except BusyError as error:
        raise InputError(f"job {settings.places.job} has a coordinator already ({error} is locked)") from error
    except KeyFileError as error:
        raise InputError(str(error)) from error
    with ended_by_signals(coordinator.stop):
        if not quiet:
            port = coordinator.endpoint.port
            say(f"kair: coordinator of job {settings.places.job} at {settings.listen[0]}:{port}, store {store}")
        coordinator.run()
    return 0


def share_of(text: str) -> float:
    """Return `1%` or `0.01` as a share. Raises UsageError for other text and for more than 1."""
    from kair_capture.settings import share_in

    try:
        return share_in(text)
    except ValueError:
        raise UsageError(f"--max-overhead must be a share such as 1% or 0.01, got {text!r}") from None


def _webhook(url: str) -> str | None:
    from kair_capture.coordinator.webhook import host_of

    if not url:
        return None
    try:
        host_of(url)
    except ValueError as error:
        raise UsageError(f"--alert-webhook, or $KAIR_ALERT_WEBHOOK: {error}") from error
    return url


def _address(text: str, option: str) -> tuple[str, int]:
    from kair_capture.places import address_of

    try:
        return address_of(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def _stalled_after(text: str) -> float:
    """Return the seconds without a finished step after which a job counts as hung. Raises UsageError."""
    from kair_capture.coordinator.watching import STALLED_S

    try:
        seconds = float(text) if text.strip() else STALLED_S
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 1e6:
        raise UsageError(f"KAIR_STALLED_AFTER must be seconds, 1 or more, got {text[:40]!r}")
    return seconds
