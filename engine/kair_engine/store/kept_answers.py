"""Keeps answers about a stored job with its recording: its triage, the last verdict, and the cost of stragglers.

A triage is reused only if everything that it depends on is unchanged: one digest of that is kept with it. The verdict
is shown in lists of jobs. A read-only store keeps nothing.
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
    """Keep the triage of all steps under the key of its inputs, if the store can be written."""
    keep(folder / _FILE, encode_json(_Kept(key, result)))


def kept_triage(folder: Path, key: str) -> TriageResult | None:
    """Return the kept triage; None if it is missing, its inputs differ, or the file is damaged."""
    kept = kept_json(folder / _FILE, _Kept)
    return None if kept is None or kept.of != key else kept.result


def key_of(folder: Path, *rests_on: object) -> str | None:
    """Return the digest of a job, its evidence, the engine's code, and other inputs of a result.

    None if there is no job.
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
    """Return a value that changes with any module or table below that folder, without reading them."""
    files = sorted(file for file in package.rglob("*") if file.suffix in {".py", ".json"})
    return repr([(file.name, (state := file.stat()).st_size, state.st_mtime_ns) for file in files]).encode()


_VERDICT_FILE: Final = "verdict.json"


@dataclass(frozen=True)
class KeptVerdict:
    """The verdict of a triage of all steps."""

    verdict: Verdict
    summary: str
    triaged_at: str
    """UTC, ISO 8601."""

    def __post_init__(self) -> None:
        """Check that it was kept at a valid time. Raises ValueError."""
        datetime.fromisoformat(self.triaged_at)


def keep_verdict(folder: Path, verdict: Verdict, summary: str) -> None:
    """Keep a verdict and its sentence in the folder of its recording. A read-only store keeps nothing."""
    kept = KeptVerdict(verdict, summary, datetime.now(UTC).isoformat(timespec="seconds"))
    keep(folder / _VERDICT_FILE, encode_json(kept))


def last_verdict(folder: Path) -> KeptVerdict | None:
    """Return the last verdict; None if it is missing, or the file is damaged."""
    return kept_json(folder / _VERDICT_FILE, KeptVerdict)


_COST_FILE: Final = "cost.json"
_SCHEMA: Final = "kair.cost"
ANALYSES: Final = 7
"""Raised when analyses change their answers: results kept before are computed again."""


@dataclass(frozen=True)
class _KeptCost:
    analyses: int
    operations: int
    """Operations of the recording as it was read: parts may have been damaged, or repaired since."""
    cost: StragglerCost


def keep_cost(folder: Path, cost: StragglerCost, operations: int) -> None:
    """Keep a cost in the folder of its recording, with the operations that were read. Read-only stores keep nothing."""
    body = encode_json(_KeptCost(ANALYSES, operations, cost))
    keep(folder / _COST_FILE, with_checksum(body, schema=_SCHEMA))


def kept_cost(folder: Path, operations: int) -> StragglerCost | None:
    """Return the kept cost; None if it is missing, it is damaged, or it is of other operations or analyses.

    Also None if a running job's coordinator recorded steps or a hang since.
    """
    kept = kept_json(folder / _COST_FILE, _KeptCost, checked_body)
    if kept is None or (kept.analyses, kept.operations) != (ANALYSES, operations):
        return None
    return None if is_recorded_since(folder.parent, (folder / _COST_FILE).stat().st_mtime) else kept.cost


def is_recorded_since(job: Path, then: float | None) -> bool:
    """Return whether a coordinator recorded steps or a hang of a job after `then`, Unix time (None: at any time)."""
    recorded = (path for name in ("steps", "hangs") for path in (job / name).rglob("*"))
    with suppress(OSError):
        return any(then is None or path.stat().st_mtime > then for path in recorded)
    return True  # they are being written


def keep(file: Path, content: bytes) -> None:
    """Write a file of results. A read-only store keeps nothing."""
    with suppress(OSError):
        write_whole(file, content, modes_below(file.parent))
