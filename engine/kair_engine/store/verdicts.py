"""The last verdict on a stored job, kept with its recording so that a list of jobs can show it."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.results.triage import Verdict
from kair_engine.trace.permissions import modes_below, read_kept, write_whole

_FILE: Final = "verdict.json"


@dataclass(frozen=True)
class KeptVerdict:
    """What a triage of all steps said."""

    verdict: Verdict
    summary: str
    triaged_at: str
    """UTC, ISO 8601."""


def keep_verdict(folder: Path, verdict: Verdict, summary: str) -> None:
    """Keeps it, with its sentence, in the folder of its recording. A store that cannot be written goes without."""
    kept = KeptVerdict(verdict, summary, datetime.now(UTC).isoformat(timespec="seconds"))
    with suppress(OSError):
        write_whole(folder / _FILE, json.dumps(asdict(kept)).encode(), modes_below(folder))


def last_verdict(folder: Path) -> KeptVerdict | None:
    """The last one; None where there is none, or the file is damaged."""
    try:
        return msgspec.json.decode(read_kept(folder / _FILE), type=KeptVerdict)
    except (OSError, ValueError, RecursionError):
        return None
