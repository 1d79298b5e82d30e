"""Keeps baselines: profiles of healthy runs, by name, and the one that is in use."""

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.comparison.changes import FEWEST_STEPS
from kair_engine.errors import InputError, KairError, NameTakenError, UnwritableStoreError, UsageError
from kair_engine.results.compare import Amount, RunProfile, SavedBaseline
from kair_engine.trace.files import make_folder, modes_below, read_kept, write_whole
from kair_engine.trace.json_text import encode_json

FILE_VERSION: Final = 1
MAX_BYTES: Final = 256 << 20
NONE_IN_USE: Final = "none"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class _File:
    version: int
    saved_at: str
    profile: RunProfile


class Baselines:
    """The baselines of one store; the folder need not exist."""

    def __init__(self, store: Path) -> None:
        self._folder = store / ".baselines"
        self._used = store / ".baseline"

    def save(self, name: str, profile: RunProfile, *, replace: bool = False) -> None:
        """Keep a profile under a name. Raises UsageError for a name that is not allowed, or too few steps.

        UnwritableStoreError where it cannot be kept.
        """
        if not _NAME.fullmatch(name) or name == NONE_IN_USE:
            raise UsageError(f"{name!r} cannot name a baseline", "letters, digits, `.`, `_` and `-`, at most 100")
        if len(profile.step_times_us) < FEWEST_STEPS:
            steps = len(profile.step_times_us)
            raise UsageError(f"{steps} steps are too few for a baseline", f"record {FEWEST_STEPS}, better 10")
        if self._path(name).exists() and not replace:
            raise NameTakenError(name, "baseline")
        kept = _File(FILE_VERSION, datetime.now(UTC).isoformat(timespec="seconds"), profile)
        try:
            modes = modes_below(self._folder.parent)
            make_folder(self._folder, modes)
            write_whole(self._path(name), encode_json(kept), modes)
        except OSError as error:
            raise UnwritableStoreError(self._folder, error) from error

    def use(self, name: str) -> None:
        """Make a baseline the one that runs are held against; NONE_IN_USE for none. Raises UsageError."""
        if name == NONE_IN_USE:
            with suppress(OSError):
                self._used.unlink(missing_ok=True)
            return
        self._read(name)
        try:
            write_whole(self._used, name.encode(), modes_below(self._used.parent))
        except OSError as error:
            raise UnwritableStoreError(self._used, error) from error

    def remove(self, name: str) -> None:
        """Forgets a baseline, damaged or not; one in use is in use no more. Raises UsageError where there is none."""
        if not _NAME.fullmatch(name) or not self._path(name).is_file():
            raise self._unknown(name)
        if self.current() == name:  # first: a kill leaves no name without a baseline
            self.use(NONE_IN_USE)
        try:
            self._path(name).unlink()
        except OSError as error:
            raise UnwritableStoreError(self._path(name), error) from error

    def current(self) -> str | None:
        """Return the one in use, where it still exists."""
        try:
            name = read_kept(self._used).decode().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return name if _NAME.fullmatch(name) and self._path(name).exists() else None

    def state_of(self, name: str | None) -> tuple[str, int, int] | None:
        """Return a baseline's name, and size and time (ns) of its file; of the one in use where None is named.

        Return None where there is none.
        """
        name = name or self.current()
        if name is None:
            return None
        try:
            state = self._path(name).stat()
        except OSError:
            return None
        return name, state.st_size, state.st_mtime_ns

    def load(self, name: str) -> RunProfile:
        """Return the profile of that name.

        Raises UsageError where there is none, InputError where its file is damaged.
        """
        return self._read(name).profile

    def listing(self) -> tuple[SavedBaseline, ...]:
        """All that can be read, by name."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            with suppress(KairError):
                kept = self._read(path.stem)
                found.append(_summary(path.stem, kept, in_use=path.stem == self.current()))
        return tuple(found)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _unknown(self, name: str) -> UsageError:
        known = ", ".join(sorted(one.stem for one in self._folder.glob("*.json"))[:8])
        return UsageError(f"no baseline {name!r}", f"there are {known}" if known else "kair baseline save NAME JOB")

    def _read(self, name: str) -> _File:
        path = self._path(name)
        if not _NAME.fullmatch(name) or not path.is_file():
            raise self._unknown(name)
        try:
            if path.stat().st_size > MAX_BYTES:
                raise InputError(f"{path} is larger than any baseline", "save it again with --replace")
            kept = msgspec.json.decode(read_kept(path), type=_File)
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"baseline {name} is damaged: {error}", "save it again with --replace") from error
        if kept.version != FILE_VERSION or not _is_sound(kept.profile):
            raise InputError(
                f"baseline {name} has a version that this Kair does not read", "save it again with --replace"
            )
        return kept


def _is_sound(profile: RunProfile) -> bool:
    """Whether every amount has an entry for each rank."""
    amounts: list[Amount] = [one.amount for one in profile.operators]
    amounts += [one.amount for one in profile.phases]
    sizes = {size for one in amounts for size in (len(one.by_rank_us), len(one.error_us))}
    whole = sizes <= {len(profile.ranks)} and list(profile.ranks) == sorted(set(profile.ranks))
    return whole and bool(profile.operators) and len(profile.step_times_us) >= FEWEST_STEPS


def _summary(name: str, kept: _File, *, in_use: bool) -> SavedBaseline:
    profile = kept.profile
    return SavedBaseline(
        name=name,
        in_use=in_use,
        saved_at=kept.saved_at,
        job=profile.name,
        source=profile.source,
        world_size=profile.world_size,
        steps=len(profile.step_times_us),
        operators=len(profile.operators),
        step_time_us=profile.step_time_us,
    )
