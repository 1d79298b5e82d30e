"""Notes: what a person wrote about a job, kept with it."""

from pathlib import Path

from kair.app.places import kept_with
from kair.app.question import Note
from kair_engine.trace.model import Job


class Notes:
    """Those of one job, in one file."""

    def __init__(self, file: Path, *, in_store: bool = False) -> None:
        self.file, self._in_store = file, in_store

    @classmethod
    def of(cls, job: Job) -> "Notes":
        """In the folder of a job of the store; for raw traces in the user's data folder, never beside the traces."""
        from kair_engine.recording.job_file import NOTES

        if job.stored_in is not None:
            return cls(Path(job.stored_in).parent / NOTES, in_store=True)
        return cls(kept_with(Path(job.source), "notes"))

    def all(self) -> tuple[Note, ...]:
        """In the order they were written; none where the file is missing or damaged."""
        import msgspec

        from kair_engine.trace.files import read_kept

        try:
            return msgspec.json.decode(read_kept(self.file), type=tuple[Note, ...])
        except (OSError, ValueError, RecursionError):
            return ()

    def on(self, about: str, screen: str) -> str:
        """What is noted on that already."""
        return next((one.text for one in self.all() if (one.about, one.screen) == (about, screen)), "")

    def write(self, note: Note) -> None:
        """Puts a note in the place of the one on the same; one without text takes it away. Raises OSError."""
        from kair_engine.trace.files import make_folder, modes_below, write_whole
        from kair_engine.trace.json_text import encode_json

        kept = tuple(one for one in self.all() if (one.about, one.screen) != (note.about, note.screen))
        if not self._in_store:  # There the folder of a job that was deleted is not made again.
            make_folder(self.file.parent)
        write_whole(self.file, encode_json((*kept, note) if note.text else kept), modes_below(self.file.parent))
