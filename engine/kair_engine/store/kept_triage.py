"""The triage of a stored job, kept with its recording so that it is not repeated when the job is looked at again.

It counts only for the very job and the very code that it came from: both stand beside it as one digest.
"""

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.recording.job_file import JOB_FILE
from kair_engine.results.triage import TriageResult
from kair_engine.trace.json_text import encode_json
from kair_engine.trace.permissions import modes_below, read_kept, write_whole

_FILE: Final = "triage.json"


class _Kept(msgspec.Struct):
    of: str
    result: TriageResult


def keep_triage(folder: Path, result: TriageResult) -> None:
    """Keeps what was found in all steps. A store that cannot be written goes without."""
    with suppress(OSError):
        write_whole(folder / _FILE, encode_json(_Kept(_digest(folder), result)), modes_below(folder))


def kept_triage(folder: Path) -> TriageResult | None:
    """What was found; None where it was never asked, the job or this code is another, or the file is damaged."""
    try:
        kept = msgspec.json.decode(read_kept(folder / _FILE), type=_Kept)
        return kept.result if kept.of == _digest(folder) else None
    except (OSError, ValueError, RecursionError):
        return None


def _digest(folder: Path) -> str:
    """Of the job and of the code. Raises OSError where there is no job."""
    return hashlib.blake2b(read_kept(folder.parent / JOB_FILE) + _code(), digest_size=16).hexdigest()


@cache
def _code() -> bytes:
    """Changes whenever a module of the engine does: 2 ms, where reading all of them would be 20."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return repr([(file.name, (state := file.stat()).st_size, state.st_mtime_ns) for file in files]).encode()
