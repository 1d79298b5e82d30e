"""What a person made of a job, kept with it: notes, and bookmarks of screens worth coming back to."""

from pathlib import Path
from typing import Generic, TypeVar

from kair.app.jobs import JobSource
from kair.app.places import kept_with
from kair.app.question import Note
from kair_engine.frozen import dataclass
from kair_engine.trace.model import Job


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


Kept = TypeVar("Kept", Note, Bookmark)


class _KeptWithJob(Generic[Kept]):
    """Keep what was made of one job in one file."""

    of_what: type[Kept]

    def __init__(self, file: Path, *, in_store: bool = False) -> None:
        self.file, self._in_store = file, in_store

    def all(self) -> tuple[Kept, ...]:
        """Return them in the order they were made; none where the file is missing or damaged."""
        import msgspec

        from kair_engine.trace.files import read_kept

        try:
            return msgspec.json.decode(read_kept(self.file), type=tuple[self.of_what, ...])  # type: ignore[name-defined]
        except (OSError, ValueError, RecursionError):
            return ()

    def _write(self, kept: tuple[Kept, ...]) -> None:
        from kair_engine.trace.files import make_folder, modes_below, write_whole
        from kair_engine.trace.json_text import encode_json

        if not self._in_store:  # There the folder of a job that was deleted is not made again.
            make_folder(self.file.parent)
        write_whole(self.file, encode_json(kept), modes_below(self.file.parent))


class Notes(_KeptWithJob[Note]):
    """Keep what a person wrote about one job."""

    of_what = Note

    @classmethod
    def of(cls, job: Job) -> "Notes":
        """Take the file in the folder of a job of the store; of raw traces one in the user's data folder."""
        from kair_engine.recording.job_file import NOTES

        if job.stored_in is not None:
            return cls(Path(job.stored_in).parent / NOTES, in_store=True)
        return cls(kept_with(Path(job.source), "notes"))

    def on(self, about: str, screen: str) -> str:
        """Return what is noted on that already."""
        return next((one.text for one in self.all() if (one.about, one.screen) == (about, screen)), "")

    def write(self, note: Note) -> None:
        """Put a note in the place of the one on the same; one without text takes it away. Raises OSError."""
        kept = tuple(one for one in self.all() if (one.about, one.screen) != (note.about, note.screen))
        self._write((*kept, note) if note.text else kept)


class Bookmarks(_KeptWithJob[Bookmark]):
    """Keep the bookmarks of one job."""

    of_what = Bookmark

    @classmethod
    def of(cls, source: JobSource) -> "Bookmarks":
        """Take the file in the folder of a job of the store; of raw traces one in the user's data folder."""
        from kair_engine.recording.job_file import BOOKMARKS

        if source.stored:
            return cls(source.path / BOOKMARKS, in_store=True)
        return cls(kept_with(source.path, "bookmarks"))

    def toggle(self, bookmark: Bookmark) -> bool:
        """Set a bookmark, or take it away where it was set; True where it is set now. Raises OSError."""
        known = self.all()
        kept = tuple(one for one in known if one != bookmark)
        is_set = len(kept) == len(known)
        self._write((*kept, bookmark) if is_set else kept)
        return is_set
