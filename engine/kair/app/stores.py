"""A store that is open: opens its jobs, and answers questions about all of them or two."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kair.app.places import is_mirror
from kair.app.question import (
    ABOUT_STORE,
    Answer,
    InWords,
    Question,
    Watcher,
    answered,
    unchanged,
    unwatched,
    warnings_of,
    write,
)
from kair_engine.errors import KairError, UsageError
from kair_engine.frozen import dataclass

if TYPE_CHECKING:
    from kair.app.jobs import JobSource
    from kair.app.session import Session
    from kair_engine.results.confirm import ConfirmRun
    from kair_engine.results.store import StragglerCost
    from kair_engine.store.jobs import StoredJob
    from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class Priced:
    """Holds the jobs' costs that were computed just now, and why others could not be."""

    costs: "Mapping[str, StragglerCost]" = field(default_factory=dict)
    warnings: "tuple[KairWarning, ...]" = ()
    listing: "tuple[list[StoredJob], list[KairWarning]] | None" = None
    """The store's jobs, where pricing changed none of them."""


NOTHING_PRICED: Final = Priced()


class OpenStore:
    """Holds the store below one folder, and the watcher of long work on it."""

    def __init__(self, root: Path, progress: Watcher = unwatched, in_words: InWords = unchanged) -> None:
        """Take the store at `root`; `in_words` adds the sentences that a face shows to an answer."""
        from kair_engine.store.jobs import Store

        self.store, self.root, self.progress, self._in_words = Store(root), root, progress, in_words

    @property
    def address(self) -> str:
        """The store's name for people: its folder, or the URL that it mirrors."""
        return self.store.address

    def listing(self) -> "tuple[list[StoredJob], list[KairWarning]]":
        """Return every job by name, and a warning for each damaged job that is left out.

        Watched jobs have the present verdict of triage; if no step was sampled, their cost too.
        """
        from kair_engine.trace.model import short_warning

        sampled, warnings = self.store.listing()
        found = list(map(self._as_triaged, sampled))
        for name in self.store.watched():
            try:
                found.append(self._watched(name))
            except KairError as error:
                warnings.append(short_warning("damaged_job", f"job {name} is left out: {error}"))
        return sorted(found, key=lambda job: job.name), warnings

    def _as_triaged(self, job: "StoredJob") -> "StoredJob":
        """Return the job with the verdict of now, where its coordinator recorded steps or a hang since the last one.

        A job that cannot be triaged keeps the last one.
        """
        from kair_engine.recording.job_file import is_watched
        from kair_engine.store.kept_answers import KeptVerdict, is_recorded_since

        then = None if job.last is None else datetime.fromisoformat(job.last.triaged_at).timestamp()
        if is_mirror(self.root) or not is_watched(job.path) or not is_recorded_since(job.path, then):
            return job
        with suppress(KairError):
            session = self.open(job.name, remembers=False)
            answer = session.ask(Question.of("triage"))
            session.keep(answer)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            last = KeptVerdict(answer.result.verdict, answer.result.summary or answer.result.verdict, now)
            return replace(job, last=last)
        return job

    def _watched(self, name: str) -> "StoredJob":
        from kair.app.attempts import attempts_of
        from kair.app.step_history import unsampled
        from kair_engine.fleet import cost_of
        from kair_engine.store.jobs import StoredJob
        from kair_engine.store.kept_answers import KeptVerdict

        folder, now = self.root / name, datetime.now(UTC).isoformat(timespec="seconds")
        if (watched := unsampled(folder)) is None:
            return StoredJob(name, now, str(folder), 0, 0, 0, 0, folder, None, None)
        session = self.open(name, remembers=False)
        found = session.ask(Question.of("triage")).result
        began = next((one.began_at for one in attempts_of(watched.job)), now)
        return StoredJob(
            name,
            began,
            watched.job.source,
            watched.job.world_size,
            len(watched.job.ranks),
            len(watched.steps),
            0,
            folder,
            KeptVerdict(found.verdict, found.summary or found.verdict, now),
            cost_of(watched, found),
        )

    def refresh(self) -> None:
        """Refresh the list of jobs of a store behind a URL. Raises InputError if the URL does not answer."""
        if is_mirror(self.root):
            from kair_engine.store.remote import fetch_jobs

            fetch_jobs(self.root)

    def open(self, job: "str | JobSource | None", **how: Any) -> "Session":  # noqa: ANN401
        """Open a job of the store, or a path; `how` as for `Session`. Raises InputError for an unknown one."""
        from kair.app.session import Session

        return Session.open(job, store=self.root, progress=self.progress, in_words=self._in_words, **how)

    def ask(self, question: Question) -> Answer:
        """Answer a question about the store. Raises what the question raises (KairError)."""
        if question.command not in ABOUT_STORE:
            raise UsageError(f"{question.command} is a question about one job", f"kair {question.command} JOB")
        result, writes = answered(question, self)
        return Answer(question, result, None, warnings=tuple(warnings_of(result)), writes=writes)

    def keep(self, answer: Answer) -> None:
        """Keep the outcome of predictions; nothing of other answers, and nothing if $KAIR_READ_ONLY is set."""
        write(answer)

    def confirmed(self, job: str, file: str) -> "ConfirmRun | None":
        """Return what delaying a running job showed, by its coordinator's record; None without one."""
        from kair_engine.store.confirmed import read_confirmed
        from kair_engine.store.remote import fetch_confirmed

        fetch_confirmed(self.root, job)
        return read_confirmed(self.root / job / "confirm" / Path(file).name)
