"""Sends orders to a running job's coordinator: sample steps now, or change settings."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kair.app.stores import OpenStore
from kair_engine.errors import InputError, UsageError
from kair_tui.cli.output import say, write_answer

if TYPE_CHECKING:
    from kair_capture.control import ProfileOptions
    from kair_capture.places import JobPlaces

_NOW = "kair capture now --job job123 --ranks 3,7"
_SET = "kair capture set job123 max-overhead=2%"


def ask_now(store: Path, job: str | None, ranks: str | None, steps: int, options: "ProfileOptions") -> int:
    """Ask the job's coordinator to sample steps, and print its answer. Raises UsageError, InputError if it refuses."""
    from kair_capture.coordinator.endpoint import ask
    from kair_capture.wire import MOST_RANKS, Capture, CaptureReply, Kind

    places = places_of(store, job, _NOW)
    wanted = _ranks_in(ranks)
    if len(wanted) > MOST_RANKS:
        raise UsageError(f"at most {MOST_RANKS} ranks can be asked for by name", "leave --ranks out for all")
    address, key = coordinator_of(places)
    with reaching(address):
        reply = ask(address, key, Kind.CAPTURE, Capture(steps, wanted, int(options)), CaptureReply)
    if reply.why_not:
        raise InputError(f"nothing is sampled: {reply.why_not}")
    last = reply.first_step + reply.steps - 1
    besides = f", with {', '.join(options.names)}" if options else ""
    say(f"kair: steps {reply.first_step} to {last} are sampled{besides}; kair watch {places.job} shows when")
    return 0


def set_values(store: Path, job: str | None, words: Sequence[str]) -> int:
    """Change the settings of `[JOB] key=value…`, and print those then in force. Raises UsageError, InputError."""
    from kair_capture.coordinator.control import SettingError, require
    from kair_capture.coordinator.endpoint import ask
    from kair_capture.wire import Kind, Values

    named, *rest = words if words and "=" not in words[0] else (job, *words)
    pairs = [word.partition("=") for word in rest if word is not None]
    if wrong := next((key for key, equals, _ in pairs if not equals), None):
        raise UsageError(f"settings are key=value, got {wrong[:40]!r}", _SET)
    changes = {key.strip().replace("_", "-"): value.strip() for key, _, value in pairs}
    try:
        for key, value in changes.items():
            require(key, value)
    except SettingError as error:
        raise UsageError(str(error), _SET) from error
    places = places_of(store, named, _SET)
    address, secret = coordinator_of(places)
    with reaching(address):
        reply = ask(address, secret, Kind.CONTROL, Values(changes), Values)
    if reply.why_not:
        raise UsageError(reply.why_not, _SET)
    write_answer(_table(reply.values))
    if changes:
        say(f"kair: ranks of {places.job} keep to that within a second or two")
    return 0


def _table(values: Mapping[str, str]) -> str:
    """Return a line per setting: its key, value, purpose and possible values."""
    from kair_capture.coordinator.control import KEYS

    shown = [(key, value) for key, value in values.items() if key in KEYS]
    of_key, of_value = (max(map(len, column), default=0) for column in zip(*shown, strict=True))
    return "".join(
        f"{key:{of_key}}  {value:{of_value}}  {KEYS[key].does} ({KEYS[key].wanted})\n" for key, value in shown
    )


def places_of(store: Path, job: str | None, example: str) -> "JobPlaces":
    """Return where a job's files are. Raises UsageError if no job is named."""
    from kair_capture.places import JobPlaces
    from kair_capture.settings import safe_name

    name = job or os.environ.get("KAIR_JOB")
    if not name or not name.strip():
        raise UsageError("which job? --job NAME, or $KAIR_JOB", example)
    return JobPlaces(store, safe_name(name))


def coordinator_of(places: "JobPlaces") -> tuple[tuple[str, int], bytes]:
    """Return the coordinator's address and the job's key. Raises UsageError, InputError if there is no coordinator."""
    from kair_capture.places import address_in, address_of
    from kair_capture.wire import KeyFileError, read_key

    try:
        named = os.environ.get("KAIR_COORDINATOR", "").strip()
        address = address_of(named) if named else address_in(places.address)
    except ValueError as error:
        raise UsageError(f"KAIR_COORDINATOR: {error}") from error
    if address is None:
        where = OpenStore(places.store).address
        raise InputError(
            f"job {places.job} has no coordinator in the store {where}", f"kair coordinator --job {places.job}"
        )
    try:
        return address, read_key(Path(os.environ.get("KAIR_KEY_FILE") or places.key), places.job)
    except KeyFileError as error:
        raise InputError(str(error)) from error


@contextmanager
def reaching(address: tuple[str, int]) -> Iterator[None]:
    """Raise InputError if the coordinator cannot be reached or does not answer."""
    from kair_capture.coordinator.endpoint import NoAnswerError

    try:
        yield
    except NoAnswerError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot reach {address[0]}:{address[1]}: {error.strerror or error}") from error


def _ranks_in(text: str | None) -> tuple[int, ...]:
    """Return the ranks of a text such as `3,7,10-12`. Raises UsageError."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) - int(first) > 1 << 16:
            raise UsageError(f"--ranks must be numbers such as 3,7 or 0-7, got {text!r}")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
