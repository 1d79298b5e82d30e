"""The job as it is open on the screens: its trace, what was chosen, answers known, bookmarks and the recording."""

import gc
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_tui.cli.job_source import JobSource
from kair_tui.cli.one_entry_cache import OneEntryCache
from kair_tui.cli.step_choice import StepChoice
from kair_tui.render.page_options import PageOptions
from kair_tui.render.written import Format, written
from kair_tui.shell.recorder import Recorder
from kair_tui.tui.bookmarks import Bookmarks
from kair_tui.tui.fix_choice import FixChoice
from kair_tui.tui.question import Question


@dataclass(frozen=True)
class Place:
    """Where in the job a screen is: its name, and what it is about."""

    screen: str
    rank: int | None = None
    operator: str | None = None
    step: int | None = None


class Session:
    """One open job. Questions may be asked from several threads at once."""

    def __init__(
        self, trace: Trace, source: JobSource, store: Path | None = None, recorder: Recorder | None = None
    ) -> None:
        self.trace = trace
        self.source = source
        self.store = store
        """The store that was named with `--store`."""
        self.steps: tuple[int, ...] | None = None
        """The steps that every question is about; None for all."""
        self.recorder = recorder or Recorder()
        self.bookmarks = Bookmarks.of(source)
        self.fixes = FixChoice()
        self.gpu_cost: float | None = None
        """What a GPU hour costs, where that was said."""
        self._cache = OneEntryCache()
        """The what-if model: one more fix is priced at once."""
        self._answers: dict[Question, Any] = {}
        self._asking: defaultdict[Question, Lock] = defaultdict(Lock)
        self._lock = Lock()

    @property
    def name(self) -> str:
        """The job's name for people."""
        return self.trace.job.name

    @property
    def chosen_steps(self) -> tuple[int, ...]:
        """The steps that questions are about, listed."""
        return self.trace.job.steps if self.steps is None else self.steps

    def question(self, command: str, **arguments: Any) -> Question:  # noqa: ANN401
        """The question for the chosen steps; arguments that are None or False are left out."""
        return Question.of(command, self.steps, **arguments)

    def command(self, question: Question) -> str:
        """The line that asks the same in a shell."""
        return question.text(self.source.name, self.store)

    def ask(self, question: Question) -> Any:  # noqa: ANN401
        """The answer, computed once. Raises what the command raises."""
        with self._lock:
            turn = self._asking[question]
        with turn:
            if question not in self._answers:
                self._answers[question] = self.compute(question)
                # It stays for as long as the job is open: looking through a million rows for garbage takes 0.2 s.
                gc.freeze()
            return self._answers[question]

    def compute(self, question: Question) -> Any:  # noqa: ANN401
        """The answer, computed now."""
        return question.answer(self.trace, self._cache)

    def known(self, question: Question) -> Any | None:  # noqa: ANN401
        """The answer if it was computed already."""
        return self._answers.get(question)

    def written(self, question: Question, form: Format, *, ascii_only: bool) -> str:
        """The answer that is known, as the command prints it in that format."""
        from kair_tui.cli.invoke import answer_about

        trace = self.trace if question.steps is None else self.trace.select(question.steps)
        answer = answer_about(question.entry, self.known(question), trace)
        return written(answer, question.entry.load_view(), form, PageOptions(ascii_only=ascii_only))

    def narrow(self, steps: tuple[int, ...] | None) -> None:
        """Asks everything from now on about these steps only. Raises UsageError for one that cannot be analysed."""
        chosen = None if steps is None else self.trace.select(steps).steps
        self.steps = None if chosen == self.trace.job.steps else chosen

    def narrow_to(self, choice: StepChoice) -> None:
        """The same for what `--step` says."""
        self.narrow(choice.among(self.trace.job.steps))

    def require_rank(self, rank: int) -> int:
        """`rank`, if the job has it. Raises UsageError where not."""
        ranks = self.trace.job.ranks
        if rank not in ranks:
            raise UsageError(f"no rank {rank} in this job ({ranks[0]}-{ranks[-1]})")
        return rank
