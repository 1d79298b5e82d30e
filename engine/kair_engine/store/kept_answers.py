"""Answers about a stored job, kept with its recording.

The triage of a stored job, kept with its recording so that it is not repeated when the job is looked at again.

It is read again only where all that it rests on is the same: that stands beside it as one digest.

The last verdict on a stored job, kept with its recording so that a list of jobs can show it.

What stragglers cost a stored job, kept with its recording so that it is worked out once.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.recording.job_file import EVIDENCE, JOB_FILE
from kair_engine.recording.kept_files import checked_body, with_checksum
from kair_engine.results.store import StragglerCost
from kair_engine.results.triage import TriageResult, Verdict
from kair_engine.trace.files import modes_below, read_kept, write_whole
from kair_engine.trace.json_text import encode_json

_FILE: Final = "triage.json"


class _Kept(msgspec.Struct):
    of: str
    result: TriageResult


def keep_triage(folder: Path, key: str, result: TriageResult) -> None:
    """Keep what was found in all steps, under the key of what it rests on, where the store can be written."""
    with suppress(OSError):
        write_whole(folder / _FILE, encode_json(_Kept(key, result)), modes_below(folder))


def kept_triage(folder: Path, key: str) -> TriageResult | None:
    """Return what was found; None where it was never kept, rests on anything else, or the file is damaged."""
    try:
        kept = msgspec.json.decode(read_kept(folder / _FILE), type=_Kept)
        return kept.result if kept.of == key else None
    except (OSError, ValueError, RecursionError):
        return None


def key_of(folder: Path, *rests_on: object) -> str | None:
    """Return the digest of a job, its evidence, the engine's code, and what else a result rests on.

    None where there is no job.
    """
    job = folder.parent
    try:
        content = read_kept(job / JOB_FILE) + _evidence(job)
    except OSError:
        return None
    return hashlib.blake2b(
        content + code_of(Path(__file__).parents[1]) + repr(rests_on).encode(), digest_size=16
    ).hexdigest()


def _evidence(job: Path) -> bytes:
    """Changes whenever a file of evidence does."""
    files = sorted(path for path in (job / EVIDENCE).rglob("*") if path.is_file())
    return repr([(str(path), (state := path.stat()).st_size, state.st_mtime_ns) for path in files]).encode()


@cache
def code_of(package: Path) -> bytes:
    """Return what changes whenever a module below that folder does: 2 ms, where reading all would be 20."""
    files = sorted(package.rglob("*.py"))
    return repr([(file.name, (state := file.stat()).st_size, state.st_mtime_ns) for file in files]).encode()


_VERDICT_FILE: Final = "verdict.json"


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
        write_whole(folder / _VERDICT_FILE, json.dumps(asdict(kept)).encode(), modes_below(folder))


def last_verdict(folder: Path) -> KeptVerdict | None:
    """The last one; None where there is none, or the file is damaged."""
    try:
        return msgspec.json.decode(read_kept(folder / _VERDICT_FILE), type=KeptVerdict)
    except (OSError, ValueError, RecursionError):
        return None


_COST_FILE: Final = "cost.json"
_SCHEMA: Final = "kair.cost"
ANALYSES: Final = 5
"""Goes up where analyses come to other answers: what was kept before is worked out again."""


@dataclass(frozen=True)
class _KeptCost:
    analyses: int
    operations: int
    """Of the recording, as it was read then: some of it may have been damaged, or mended since."""
    cost: StragglerCost


def keep_cost(folder: Path, cost: StragglerCost, operations: int) -> None:
    """Keeps it in the folder of its recording, of which so many operations were read. Read-only stores do without."""
    with suppress(OSError):
        body = encode_json(_KeptCost(ANALYSES, operations, cost))
        write_whole(folder / _COST_FILE, with_checksum(body, schema=_SCHEMA), modes_below(folder))


def kept_cost(folder: Path, operations: int) -> StragglerCost | None:
    """What was kept; None where there is nothing, it is damaged, or it is of other operations or analyses."""
    try:
        kept = msgspec.json.decode(checked_body(read_kept(folder / _COST_FILE)), type=_KeptCost)
    except (OSError, ValueError, RecursionError):
        return None
    return kept.cost if (kept.analyses, kept.operations) == (ANALYSES, operations) else None
