"""Bookmarks: places in a job worth coming back to, kept with it."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from kair_engine.recording.job_file import BOOKMARKS
from kair_tui.cli.arguments.job import JobSource
from kair_tui.cli.places import kept_with


@dataclass(frozen=True)
class Bookmark:
    """A screen, what it was about, and the steps that were chosen (None for all)."""

    title: str
    screen: str
    rank: int | None = None
    operator: str | None = None
    step: int | None = None
    steps: tuple[int, ...] | None = None
    at_us: float | None = None


class Bookmarks:
    """Those of one job, in one file."""

    def __init__(self, file: Path, *, in_store: bool = False) -> None:
        self.file, self._in_store = file, in_store

    @classmethod
    def of(cls, source: JobSource) -> "Bookmarks":
        """In the folder of a job of the store; for raw traces in the user's data folder, never beside the traces."""
        if source.stored:
            return cls(source.path / BOOKMARKS, in_store=True)
        return cls(kept_with(source.path, "bookmarks"))

    def all(self) -> tuple[Bookmark, ...]:
        """In the order they were set; none where the file is missing or damaged."""
        from kair_engine.trace.permissions import read_kept

        try:
            return msgspec.json.decode(read_kept(self.file), type=tuple[Bookmark, ...])
        except (OSError, ValueError, RecursionError):
            return ()

    def toggle(self, bookmark: Bookmark) -> bool:
        """Sets a bookmark, or takes it away where it was set; True where it is set now. Raises OSError."""
        from kair_engine.trace.json_text import encode_json
        from kair_engine.trace.permissions import make_folder, modes_below, write_whole

        known = self.all()
        kept = tuple(one for one in known if one != bookmark)
        is_set = len(kept) == len(known)
        if not self._in_store:  # There the folder of a job that was deleted is not made again.
            make_folder(self.file.parent)
        write_whole(self.file, encode_json((*kept, bookmark) if is_set else kept), modes_below(self.file.parent))
        return is_set
