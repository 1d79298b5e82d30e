"""Keeps a person's notes and bookmarked screens with a job."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from kair.app.places import OfTraces, kept_with
from kair.app.question import Note
from kair_engine.frozen import dataclass

if TYPE_CHECKING:
    from kair_engine.trace.model import Job


@dataclass(frozen=True)
class Bookmark:
    """Names a screen, its subject, and the chosen steps (None for all)."""

    title: str
    screen: str
    rank: int | None = None
    operator: str | None = None
    step: int | None = None
    steps: tuple[int, ...] | None = None
    at_us: float | None = None


Kept = TypeVar("Kept", Note, Bookmark)


class _KeptWithJob(Generic[Kept]):
    """Keep what was made of one job in one file."""

    kind: type[Kept]
    name: OfTraces

    def __init__(self, file: Path, *, in_store: bool = False) -> None:
        self.file, self._in_store = file, in_store

    @classmethod
    def of(cls, job: "Job") -> Self:
        """Return those in the folder of a job of the store; for raw traces, in the user's data folder."""
        if job.stored_in is not None:
            return cls(Path(job.stored_in).with_name(f"{cls.name}.json"), in_store=True)
        return cls(kept_with(Path(job.source), cls.name))

    def all(self) -> tuple[Kept, ...]:
        """Return them in the order in which they were made; none if the file is missing or damaged."""
        import msgspec

        from kair_engine.trace.files import read_kept

        try:
            return msgspec.json.decode(read_kept(self.file), type=tuple[self.kind, ...])  # type: ignore[name-defined]
        except (OSError, ValueError, RecursionError):
            return ()

    def _replace(self, old: Callable[[Kept], bool], new: Kept | None) -> None:
        """Put `new` in the place of what is `old`. Raises OSError."""
        from kair_engine.trace.files import make_folder, modes_below, write_whole
        from kair_engine.trace.json_text import encode_json

        if not self._in_store:  # There the folder of a job that was deleted is not made again.
            make_folder(self.file.parent)
        kept = (*(one for one in self.all() if not old(one)), *(() if new is None else (new,)))
        write_whole(self.file, encode_json(kept), modes_below(self.file.parent))


class Notes(_KeptWithJob[Note]):
    """Keeps a person's notes on one job."""

    kind = Note
    name = "notes"

    def on(self, about: str, screen: str) -> str:
        """Return the text of the note on that, if there is one."""
        return next((note.text for note in self.all() if (note.about, note.screen) == (about, screen)), "")

    def write(self, note: Note) -> None:
        """Replace the note on the same thing; a note without text removes it. Raises OSError."""
        subject = note.about, note.screen
        self._replace(lambda other: (other.about, other.screen) == subject, note if note.text else None)


class Bookmarks(_KeptWithJob[Bookmark]):
    """Keeps the bookmarks of one job."""

    kind = Bookmark
    name = "bookmarks"

    def toggle(self, bookmark: Bookmark) -> bool:
        """Set a bookmark, or remove it if it was set; return whether it is set now. Raises OSError."""
        is_set = bookmark not in self.all()
        self._replace(lambda other: other == bookmark, bookmark if is_set else None)
        return is_set
