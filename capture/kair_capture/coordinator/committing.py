"""Commits delivered fragments to the job: `job.json`, which names all of them, is replaced atomically.

Fragments stay where they were delivered until they are compacted, so a commit writes one small file. Readers lock the
folder that `job.json` names as the recording; compacted fragments are removed when no reader holds the previous one.
"""

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from kair_capture.agent.spool import read_name
from kair_capture.agent.windows import alike, join_fragments
from kair_capture.places import JobPlaces
from kair_engine.errors import InputError
from kair_engine.recording.job_file import (
    JOB_FILE,
    RECORDING,
    JobFile,
    KeptFragment,
    read_job_file,
    write_job_file,
)
from kair_engine.recording.kept_files import checksum_of, claim
from kair_engine.trace.files import make_folder, modes_below, remove_unwritten
from kair_engine.trace.format import read_metadata
from kair_engine.trace.model import FragmentInfo

COMPACT_FROM: Final = 32
"""Most single fragments of a job; every scan opens each."""
_PART_BYTES: Final = 128 << 20
_MOST_BYTES: Final = 4 << 30
_FIRST_RECORDING: Final = "captured"
"""The recording before the first compaction, empty except for analyses' caches. With an import's name and no `job.json`
yet, the job would count as damaged.
"""


class NotOursError(Exception):
    """Raised if an import has taken the job's name, which is not overwritten."""


@dataclass(frozen=True)
class Committed:
    """Result of one round."""

    windows: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    """First and last step and ranks of every fragment that became part of the job."""
    refused: int = 0
    duplicates: int = 0


class Committer:
    """Commits of one job. The engine's readers see each round entirely or not at all."""

    def __init__(self, places: JobPlaces, key: bytes) -> None:
        self._places, self._key = places, key
        self._useless: set[Path] = set()
        """Duplicates and compacted fragments, which may still have readers."""
        self.refused: Counter[str] = Counter()
        """Invalid delivered files, by reason."""

    def round(self) -> Committed:
        """Commit what was delivered. Raises OSError if the store cannot be written, NotOursError."""
        delivered = sorted(self._places.delivered.glob("host=*/steps-*.parquet"))
        job = self._job()
        listed = set() if job is None else {fragment.path for fragment in job.fragments}
        new = [path for path in delivered if self._relative(path) not in listed and path not in self._useless]
        if not new:
            return Committed()
        fragments = [] if job is None else list(job.fragments)
        cells = _cells(fragments)
        added: list[KeptFragment] = []
        refused = duplicates = 0
        for path in new:
            info = self._checked(path)
            if info is None:
                refused += 1
                self._useless.add(path)
                with suppress(OSError):  # something that is not a file must not block others
                    path.unlink()
                continue
            one = KeptFragment(self._relative(path), checksum_of(path), info)
            # The job went back to a checkpoint: earlier samples of these steps no longer count.
            for lost in [kept for kept in (*fragments, *added) if self._is_alone(kept) and _shows_again(one, kept)]:
                (fragments if lost in fragments else added).remove(lost)
                self._useless.add(self._places.folder / lost.path)
                cells = _cells([*fragments, *added])
            is_lost = any(_shows_again(kept, one) for kept in (*fragments, *added))
            if cells.isdisjoint(_cells([one])) and not is_lost:
                cells |= _cells([one])
                added.append(one)
            else:
                duplicates += 1
                self._useless.add(path)
        if added:
            self._write(job, [*fragments, *added])
        windows = []
        for one in added:
            steps = one.info.step_times.step
            windows.append((min(steps), max(steps), one.info.ranks))
        return Committed(tuple(windows), refused, duplicates)

    def _is_alone(self, kept: KeptFragment) -> bool:
        """Return whether the fragment is as delivered, not joined with others."""
        return (self._places.folder / kept.path).is_relative_to(self._places.delivered)

    def compact(self, least: int = COMPACT_FROM) -> bool:
        """Join small fragments once there are `least`; return whether it did. Raises OSError."""
        job = self._job()
        if job is None:
            return False
        small = [one for one in job.fragments if one.seal.bytes < _PART_BYTES // 2]
        if len(small) >= least:
            self._compacted(job, small)
            return True
        return False

    def tidy(self) -> None:
        """Remove compacted fragments and duplicates once no reader holds an earlier recording.

        Partial deliveries of killed agents are removed at once.
        """
        for folder in self._places.delivered.glob("host=*"):
            remove_unwritten(folder)
        job = self._job()
        if job is None:
            return
        names = (_FIRST_RECORDING, *(path.name for path in self._places.folder.glob(f"{RECORDING}*")))
        old = [self._places.folder / name for name in names if name != job.recording]
        if not (old or self._useless) or not all(map(_is_free, old)):
            return
        for folder in old:
            shutil.rmtree(folder, ignore_errors=True)
        listed = {fragment.path for fragment in job.fragments}
        for path in self._useless:
            if self._relative(path) not in listed:
                with suppress(OSError):
                    path.unlink()
        self._useless = {path for path in self._useless if path.is_dir()}

    def _job(self) -> JobFile | None:
        if not (self._places.folder / JOB_FILE).exists():
            return None
        try:
            job = read_job_file(self._places.folder)
        except InputError as error:
            raise NotOursError(str(error)) from error
        if job.recording != _FIRST_RECORDING and not job.source.startswith(_SOURCE):
            raise NotOursError(f"the job {job.name} was imported; capture under another name")
        return job

    def _checked(self, path: Path) -> FragmentInfo | None:
        """Return the content of a delivered file; None if no agent of this job made it."""
        name, host = read_name(path.name), path.parent.name.removeprefix("host=")
        try:
            if name is None or path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_BYTES:
                raise ValueError("name")
            if not name.is_of(path, host, self._key):
                raise ValueError("signature")
            info = msgspec.convert(read_metadata(path), FragmentInfo, strict=False)
            if not info.ranks or not info.step_times.step:
                raise ValueError("content")
        except (ValueError, TypeError, pa.ArrowException) as error:
            self.refused[str(error) if type(error) is ValueError else "content"] += 1
            return None
        return replace(info, source=self._relative(path))

    def _write(self, job: JobFile | None, fragments: Sequence[KeptFragment], recording: str | None = None) -> None:
        folder = self._places.folder
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        hosts = {host for fragment in fragments for host in fragment.info.hosts.values()}
        source = f"{_SOURCE} {len(hosts)} host{'s' if len(hosts) != 1 else ''}"
        recording = recording or (job.recording if job is not None else _FIRST_RECORDING)
        make_folder(folder / recording, modes_below(self._places.store))
        document = JobFile(self._places.job, now, source, recording, tuple(fragments), ())
        write_job_file(folder, document, modes_below(self._places.store))

    def _compacted(self, job: JobFile, small: Sequence[KeptFragment]) -> None:
        """Join `small` into a few large fragments in a new recording's folder, then point `job.json` to it."""
        folder = self._places.folder
        recording = folder / f"{RECORDING}{os.urandom(4).hex()}"
        recording.mkdir(modes_below(self._places.store).folder)
        try:
            parts = [
                self._joined(group, recording / f"part-{number:05}.parquet")
                for number, group in enumerate(_groups(small))
            ]
            joined = {one.path for one in small}
            others = [one for one in job.fragments if one.path not in joined]
            self._write(job, [*others, *parts], recording.name)
        except BaseException:
            shutil.rmtree(recording, ignore_errors=True)
            raise
        self._useless.update(folder / one.path for one in small)

    def _joined(self, group: Sequence[KeptFragment], out: Path) -> KeptFragment:
        parts = [(self._places.folder / one.path, one.info) for one in group]
        info = join_fragments(parts, out, f"{out.parent.name}/{out.name}")
        return KeptFragment(self._relative(out), checksum_of(out), info)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._places.folder).as_posix()


_SOURCE: Final = "captured on"


def _cells(fragments: Sequence[KeptFragment]) -> set[tuple[int, int]]:
    of = (one.info.step_times for one in fragments)
    return {cell for times in of for cell in zip(times.rank, times.step, strict=True)}


def _shows_again(one: KeptFragment, kept: KeptFragment) -> bool:
    """Return whether a fragment repeats steps of another one that were trained again after those were over."""
    times, before = one.info.step_times, kept.info.step_times
    ended = zip(before.step, before.begin_ns, before.duration_ns, strict=True)
    over = {step: begin + length for step, begin, length in sorted(ended)}
    shared = [(begin, over[step]) for step, begin in zip(times.step, times.begin_ns, strict=True) if step in over]
    return bool(shared) and all(begin > end for begin, end in shared)


def _groups(small: Sequence[KeptFragment]) -> list[list[KeptFragment]]:
    """Return groups that can be one fragment, up to a part's size."""
    found: dict[str, list[list[KeptFragment]]] = {}
    for one in small:
        groups = found.setdefault(alike(one.info), [[]])
        if groups[-1] and sum(kept.seal.bytes for kept in groups[-1]) + one.seal.bytes > _PART_BYTES:
            groups.append([])
        groups[-1].append(one)
    return [group for groups in found.values() for group in groups]


def _is_free(folder: Path) -> bool:
    """Return whether no reader holds the recording in this folder."""
    try:
        claimed = claim(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if claimed is None:
        return False
    claimed.close()
    return claimed.locked
