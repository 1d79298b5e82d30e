"""A store that is open: opens its jobs, and answers questions about all of them or two."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kair.app.question import ABOUT_STORE, Answer, Question, Watcher, answering, unwatched, warnings_of, write
from kair_engine.errors import UsageError

if TYPE_CHECKING:
    from kair.app.session import Session


class OpenStore:
    """The store below one folder, and whom long work on it reports to."""

    def __init__(self, root: Path, progress: Watcher = unwatched) -> None:
        from kair_engine.store.jobs import Store

        self.store, self.progress = Store(root), progress

    def open(self, job: str | None, **how: Any) -> "Session":  # noqa: ANN401
        """Open a job of the store, or a path. Raises InputError where there is none; `how` as of `Session`."""
        from kair.app.session import Session

        return Session.open(job, store=self.store.root, progress=self.progress, **how)

    def ask(self, question: Question) -> Answer:
        """Answer a question about the store. Raises what the question raises (KairError)."""
        if question.command not in ABOUT_STORE:
            raise UsageError(f"{question.command} is a question about one job", f"kair {question.command} JOB")
        result, writes = answering(question.command)(self, **dict(question.arguments))
        return Answer(question, result, None, warnings=tuple(warnings_of(result)), writes=writes)

    def keep(self, answer: Answer) -> None:
        """Write what came of predictions. Nothing is written of any other answer, or where $KAIR_READ_ONLY is set."""
        write(answer)
