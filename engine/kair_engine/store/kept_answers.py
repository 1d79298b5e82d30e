"""Answers about a stored job, kept with its recording: its triage, the last verdict, and what stragglers cost it.

A triage is read again only if all that it depends on is the same: one digest of that is kept with it. The verdict is
shown in lists of jobs. A store that cannot be written keeps nothing.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
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
from kair_engine.trace.json_text import encode_json, kept_json

_FILE: Final = "triage.json"


class _Kept(msgspec.Struct):
    of: str
    result: TriageResult


def keep_triage(folder: Path, key: str, result: TriageResult) -> None:
    """Keep what was found in all steps, under the key of what it rests on, where the store can be written."""
    keep(folder / _FILE, encode_json(_Kept(key, result)))


def kept_triage(folder: Path, key: str) -> TriageResult | None:
    """Return what was found; None where it was never kept, rests on anything else, or the file is damaged."""
    kept = kept_json(folder / _FILE, _Kept)
    return None if kept is None or kept.of != key else kept.result


def key_of(folder: Path, *rests_on: object) -> str | None:
    """Return the digest of a job, its evidence, the engine's code, and what else a result rests on.

    Return None where there is no job.
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
    """Return a value that changes whenever a file of evidence does."""
    files = sorted(path for path in (job / EVIDENCE).rglob("*") if path.is_file())
    return repr([(str(path), (state := path.stat()).st_size, state.st_mtime_ns) for path in files]).encode()


@cache
def code_of(package: Path) -> bytes:
    """Return what changes whenever a module or table below that folder does, without reading any of them."""
    files = sorted(file for file in package.rglob("*") if file.suffix in {".py", ".json"})
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
    """Keep it, with its sentence, in the folder of its recording. A store that cannot be written goes without."""
    kept = KeptVerdict(verdict, summary, datetime.now(UTC).isoformat(timespec="seconds"))
    keep(folder / _VERDICT_FILE, encode_json(kept))


def last_verdict(folder: Path) -> KeptVerdict | None:
    """Return the last one; None where there is none, or the file is damaged."""
    return kept_json(folder / _VERDICT_FILE, KeptVerdict)


_COST_FILE: Final = "cost.json"
_SCHEMA: Final = "kair.cost"
ANALYSES: Final = 7
"""Goes up where analyses come to other answers: what was kept before is worked out again."""


@dataclass(frozen=True)
class _KeptCost:
    analyses: int
    operations: int
    """Of the recording, as it was read then: some of it may have been damaged, or mended since."""
    cost: StragglerCost


def keep_cost(folder: Path, cost: StragglerCost, operations: int) -> None:
    """Keep it in the folder of its recording, of which so many operations were read. Read-only stores do without."""
    body = encode_json(_KeptCost(ANALYSES, operations, cost))
    keep(folder / _COST_FILE, with_checksum(body, schema=_SCHEMA))


def kept_cost(folder: Path, operations: int) -> StragglerCost | None:
    """Return what was kept; None where there is nothing, it is damaged, or it is of other operations or analyses.

    Neither is it returned where a running job's coordinator recorded steps or a hang since.
    """
    kept = kept_json(folder / _COST_FILE, _KeptCost, checked_body)
    if kept is None or (kept.analyses, kept.operations) != (ANALYSES, operations):
        return None
    return None if is_recorded_since(folder.parent, (folder / _COST_FILE).stat().st_mtime) else kept.cost


def is_recorded_since(job: Path, then: float | None) -> bool:
    """Return whether a coordinator recorded steps or a hang of a job after that time, Unix time; None: at all."""
    recorded = (path for name in ("steps", "hangs") for path in (job / name).rglob("*"))
    with suppress(OSError):
        return any(then is None or path.stat().st_mtime > then for path in recorded)
    return True  # they are being written


def keep(file: Path, content: bytes) -> None:
    """Write a file of what was found. A store that cannot be written goes without."""
    with suppress(OSError):
        write_whole(file, content, modes_below(file.parent))
