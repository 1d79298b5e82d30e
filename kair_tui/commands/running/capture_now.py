"""`kair capture now`: a window of sampled steps, asked for by hand."""

import os
from pathlib import Path

from kair_engine.errors import InputError, UsageError
from kair_tui.cli.output.streams import say


def ask_now(store: Path, job: str | None, ranks: str | None, steps: int) -> int:
    """Asks the job's coordinator, and says what it answers. Raises UsageError, InputError where it refuses."""
    from kair_capture.coordinator.request_window import NoAnswerError, address_in, ask
    from kair_capture.places import JobPlaces, address_of
    from kair_capture.settings import safe_name
    from kair_capture.wire.keys import KeyFileError, read_key
    from kair_capture.wire.messages import MOST_RANKS, Capture

    name = job or os.environ.get("KAIR_JOB")
    if not name:
        raise UsageError("which job? --job NAME, or $KAIR_JOB", "kair capture now --job job123 --ranks 3,7")
    places = JobPlaces(store, safe_name(name))
    wanted = _ranks_in(ranks)
    if len(wanted) > MOST_RANKS:
        raise UsageError(f"at most {MOST_RANKS} ranks can be asked for by name", "leave --ranks out for all")
    try:
        named = os.environ.get("KAIR_COORDINATOR", "").strip()
        address = address_of(named) if named else address_in(places.address)
    except ValueError as error:
        raise UsageError(f"KAIR_COORDINATOR: {error}") from error
    if address is None:
        from kair_engine.store.remote import place_of

        raise InputError(
            f"job {places.job} has no coordinator in the store {place_of(store)}", f"kair coordinator --job {name}"
        )
    try:
        key = read_key(Path(os.environ.get("KAIR_KEY_FILE") or places.key), places.job)
        reply = ask(address, key, Capture(steps, wanted))
    except (KeyFileError, NoAnswerError) as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"cannot reach {address[0]}:{address[1]}: {error.strerror or error}") from error
    if reply.why_not:
        raise InputError(f"nothing is sampled: {reply.why_not}")
    last = reply.first_step + reply.steps - 1
    say(f"kair: steps {reply.first_step} to {last} are sampled; kair watch {name} tells when")
    return 0


def _ranks_in(text: str | None) -> tuple[int, ...]:
    """`3,7,10-12`. Raises UsageError."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) - int(first) > 1 << 16:
            raise UsageError(f"--ranks must be numbers such as 3,7 or 0-7, got {text!r}")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
