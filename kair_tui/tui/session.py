"""The job open on the screens, with choices, bookmarks and the recording."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kair.app import session as app
from kair.app.jobs import JobSource
from kair.app.notes import Bookmarks
from kair.app.question import Answer, Question, Watcher, unwatched
from kair.app.session import Wanted, always
from kair.app.step_choice import StepChoice
from kair_engine.errors import UsageError
from kair_engine.results.money import GpuCost
from kair_engine.trace.model import Trace
from kair_tui.cli.asking import in_words, shown
from kair_tui.render.answer import PageOptions
from kair_tui.render.written import Format, written
from kair_tui.shell.recorder import Recorder
from kair_tui.tui.fix_selection import FixSelection
from kair_tui.tui.question import entry_of, line_of

if TYPE_CHECKING:
    from kair_engine.results.lateness import Lateness


_SHOWN_SO_FAR: Final = frozenset({"whatif"})
"""Questions whose results are shown as they come."""


@dataclass(frozen=True)
class Place:
    """Where in the job a screen is: its name, and what it is about."""

    screen: str
    rank: int | None = None
    operator: str | None = None
    step: int | None = None
    at_us: float | None = None
    """Time in the rank's step."""


class Session(app.Session):
    """One open job, and the choices on the screens."""

    watches_files = True

    def __init__(
        self,
        trace: Trace,
        source: JobSource,
        *,
        store: Path | None = None,
        recorder: Recorder | None = None,
        read_from: Hashable = None,
        progress: Watcher = unwatched,
    ) -> None:
        """Return `read_from` is the state of the job's files before they were read; None if irrelevant."""
        super().__init__(trace, source, store=store, progress=progress, in_words=in_words, read_from=read_from)
        self.steps: tuple[int, ...] | None = None
        """The steps of every question; None for all."""
        self.how_far: dict[Question, str] = {}
        """The progress of each answer's computation."""
        self.so_far: dict[Question, Any] = {}
        """What is known of each result while the rest is computed."""
        self.recorder = recorder or Recorder()
        self.bookmarks = Bookmarks.of(trace.job)
        self.fixes = FixSelection()
        self.gpu_cost: GpuCost | None = None
        """The price of a GPU hour, if given."""

    def renew(self, trace: Trace, read_from: Hashable) -> None:
        """Drop every answer, because the job was read again; fixes, and steps that still exist, stay."""
        super().renew(trace, read_from)
        self.so_far.clear()
        if self.steps is not None:
            there = tuple(step for step in self.steps if step in trace.job.steps)
            self.steps = there if there and there != trace.job.steps else None

    def ask(self, question: Question, wanted: Wanted = always) -> Answer:
        """Answer a question, and keep reusable results. Raises KairError, and Cancelled."""
        try:
            answer = super().ask(question, wanted)
        finally:
            self.how_far.pop(question, None)
        self.so_far.pop(question, None)
        self.keep(answer)
        return answer

    def tell(self, question: Question, share: float, what: str) -> None:
        """Keep the progress of an answer, for the screen that waits for it."""
        self.how_far[question] = f"{what}, {share:.0%}"

    def look(self, question: Question) -> Callable[[Any], None] | None:
        """Keep what is known of a result, for the screen that waits for it; of an earlier attempt nothing stays."""
        self.so_far.pop(question, None)
        return partial(self.so_far.__setitem__, question) if question.command in _SHOWN_SO_FAR else None

    @property
    def chosen_steps(self) -> tuple[int, ...]:
        """Return the steps that questions are about, listed."""
        return self.trace.job.steps if self.steps is None else self.steps

    def question(self, command: str, **arguments: Any) -> Question:  # noqa: ANN401
        """Return the question for the chosen steps; arguments that are None or False are left out."""
        return Question.of(command, self.steps, **arguments)

    def command(self, question: Question) -> str:
        """Return the command line of the question."""
        return line_of(question, self.source.name, self.store)

    def lateness(self) -> "Lateness":
        """Return the lateness of the chosen steps. Raises KairError."""
        found: Lateness = self.ask(self.question("lateness")).result
        return found

    def known_lateness(self) -> "Lateness | None":
        """Return the same if already computed."""
        known = self.known(self.question("lateness"))
        return None if known is None else known.result

    def written(self, question: Question, form: Format, *, ascii_only: bool) -> str:
        """Return the known answer, as the command prints it in that format."""
        answer = shown(self.ask(question))
        return written(answer, entry_of(question).load_view(), form, PageOptions(ascii_only=ascii_only))

    def narrow(self, steps: tuple[int, ...] | None) -> None:
        """Restrict all further questions to these steps. Raises UsageError for one that cannot be analysed."""
        chosen = None if steps is None else self.narrowed(steps).steps
        self.steps = None if chosen == self.trace.job.steps else chosen

    def narrow_to(self, choice: StepChoice) -> None:
        """Narrow to the choice of `--step`."""
        self.narrow(self.chosen(choice))

    def require_rank(self, rank: int) -> int:
        """Return `rank`. Raises UsageError if the job lacks it."""
        ranks = self.trace.job.ranks
        if rank not in ranks:
            raise UsageError(f"no rank {rank} in this job ({ranks[0]}-{ranks[-1]})")
        return rank
