"""The state of a shell: the open jobs, the focus, the named answers."""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kair.app.jobs import JobSource, locate
from kair.app.places import store_root
from kair.app.question import unwatched
from kair.app.session import Session
from kair.app.step_choice import parse_steps, step_text
from kair_engine.errors import InputError, UsageError
from kair_tui.cli.asking import open_session
from kair_tui.cli.fields import Named, field_of, nearest_of
from kair_tui.cli.words import Reference

if TYPE_CHECKING:
    from kair.app.question import Watcher


JOB: Final = "job"
"""The name of the current job, unless it has another value."""


def _nobody_reads(_: str) -> None:
    """Drop a note."""


class ShellState:
    """One shell's state. A job is read once, and stays open."""

    def __init__(
        self,
        store: Path | None = None,
        *,
        progress: "Watcher" = unwatched,
        note: Callable[[str], None] = _nobody_reads,
    ) -> None:
        self.store = store
        """The store from `--store`."""
        self.progress = progress
        self.note = note
        self.source: JobSource | None = None
        """The job that commands use by default; None until one is needed."""
        self.steps = "all"
        """The steps in focus, as in `--step`."""
        self.rank: int | None = None
        """The rank in focus."""
        self.named: dict[str, Named] = {}
        self.jobs_read = 0
        """The number of recordings opened."""
        self._open: dict[Hashable, Session] = {}

    def hold(self, session: Session, steps: Sequence[int] | None) -> None:
        """Take a job that is open elsewhere, and the steps chosen there."""
        source = session.source
        self._open[source.key] = session
        if self.source != source:
            self.rank = None
        self.source, self.steps = source, "all" if steps is None else step_text(steps)

    def job(self) -> JobSource:
        """Return the current job, else the default of any command. Raises InputError if it does not exist."""
        if self.source is None:
            self.source = locate(None, self.store)
            self.note(f"using job {self.source.name} ({self.source.why})")
        return self.source

    def take(self, name: str, files: Sequence[Path] = ()) -> JobSource:
        """Switch to another job, or to that of several files, and drop the focus.

        Raises InputError if it does not exist.
        """
        folder = store_root(self.store) / name
        try:
            self.source = locate(name, self.store, files)
        except InputError:
            # A running job of which nothing was recorded yet.
            if Path(name).name != name or not (folder / "mitigate").is_dir():
                raise
            self.source = JobSource(name, folder, stored=True)
        self.steps, self.rank = "all", None
        return self.source

    def opened(self, source: JobSource) -> Session:
        """Return the job, which is read once. Raises InputError."""
        if source.key not in self._open:
            session = open_session(source, store=self.store, progress=self.progress)
            session.keep_steps()
            self._open[source.key] = session
            self.jobs_read += 1
        return self._open[source.key]

    def named_source(self, name: str, store: Path | None, files: Sequence[Path] = ()) -> JobSource:
        """Return the job that a line names, which may be the current one; several files are one job."""
        if files:
            return locate(name, store, files)
        if self.source is not None and self.source.name == name and store == self.store:
            return self.source
        return locate(name, store)

    def forget(self, source: JobSource) -> None:
        """Close a job that was imported again."""
        self._open.pop(source.key, None)

    def forget_answers(self) -> None:
        """Drop all answers because evidence was added."""
        for session in self._open.values():
            session.renew(session.trace, session.read_from)

    def focus_steps(self, text: str) -> None:
        """Narrow to `40-60`, `last` or `all`. Raises UsageError for steps that this job lacks."""
        choice = parse_steps(text)
        session = self.opened(self.job())
        session.narrowed(session.chosen(choice))
        self.steps = text.strip().lower()

    def focus_rank(self, text: str) -> None:
        """Narrow to a rank of the job, or `all`. Raises UsageError for another."""
        if text == "all":
            self.rank = None
            return
        ranks = self.opened(self.job()).trace.job.ranks
        if not text.isdecimal() or int(text) not in ranks:
            raise UsageError(f"no rank {text} in this job ({ranks[0]}-{ranks[-1]})", "use rank all for every rank")
        self.rank = int(text)

    def value_of(self, reference: Reference) -> Any:  # noqa: ANN401
        """Return the value of a reference. Raises UsageError if it is unknown."""
        if reference.name not in self.named:
            if reference == Reference(JOB):
                return self.job().name
            raise not_set(reference.name, self.named)
        return field_of(reference, self.named[reference.name])


def not_set(name: str, known: "Sequence[str] | dict[str, Any]") -> UsageError:
    """Return the error for a name without a value."""
    near = nearest_of(name, [*known])
    there = f"there are: {', '.join('$' + one for one in known)}" if known else "--set NAME=VALUE gives a value"
    return UsageError(f"${name} is not set", f"did you mean ${near}?" if near else there)
