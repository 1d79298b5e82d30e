"""The state of a shell: the open jobs, the focus, the answers that were given a name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_tui.cli.arguments.job import JobSource, locate, open_source, tidy
from kair_tui.cli.arguments.steps import parse_steps, step_text
from kair_tui.cli.one_entry_cache import OneEntryCache
from kair_tui.cli.output.progress import unwatched
from kair_tui.shell.fields import Named, field_of
from kair_tui.shell.lexer import Reference

if TYPE_CHECKING:
    from kair_tui.cli.output.progress import Watcher
    from kair_tui.render.answer import Answer


JOB: Final = "job"
"""The name that stands for the job in hand, where nothing else was given it."""


def _nobody_reads(_: str) -> None:
    """Notes that nobody reads."""


class ShellState:
    """One shell's state. A job is read once, and stays."""

    def __init__(
        self,
        store: Path | None = None,
        *,
        progress: "Watcher" = unwatched,
        note: Callable[[str], None] = _nobody_reads,
    ) -> None:
        self.store = store
        """The store that was named with `--store`."""
        self.progress = progress
        self.note = note
        self.source: JobSource | None = None
        """The job that commands take when none is named; None until one is asked for."""
        self.steps = "all"
        """The steps in focus, as `--step` has them."""
        self.rank: int | None = None
        """The rank in focus."""
        self.named: dict[str, Named] = {}
        self.jobs_read = 0
        """How often a recording was opened."""
        self._open: dict[Path, tuple[Trace, OneEntryCache]] = {}
        self._answers: dict[tuple[Any, ...], Answer] = {}

    def hold(self, source: JobSource, trace: Trace, steps: Sequence[int] | None) -> None:
        """Takes a job that is open elsewhere, and the steps chosen there."""
        if self._open.get(source.path, (None,))[0] is not trace:
            self.forget(source)
            self._open[source.path] = (trace, OneEntryCache())
        if self.source != source:
            self.rank = None
        self.source, self.steps = source, "all" if steps is None else step_text(steps)

    def job(self) -> JobSource:
        """The job in hand, else the one that any command would take. Raises InputError where there is none."""
        if self.source is None:
            self.source = locate(None, self.store)
            self.note(f"using job {self.source.name} ({self.source.why})")
        return self.source

    def take(self, name: str) -> JobSource:
        """Takes another job in hand; the focus was the other's, and goes. Raises InputError where there is none."""
        self.source = locate(name, self.store)
        self.steps, self.rank = "all", None
        return self.source

    def opened(self, source: JobSource) -> tuple[Trace, OneEntryCache]:
        """The job's trace, and the place for what serves the next question about it. Raises InputError."""
        if source.path not in self._open:
            from kair_engine.trace.steps.step_memory import keeping_steps

            tidy(self.store)
            trace = keeping_steps(open_source(source, progress=self.progress))
            self._open[source.path] = (trace, OneEntryCache())
            self.jobs_read += 1
        return self._open[source.path]

    def named_source(self, name: str, store: Path | None) -> JobSource:
        """The job that a line names, which may be the one in hand."""
        if self.source is not None and self.source.name == name and store == self.store:
            return self.source
        return locate(name, store)

    def forget(self, source: JobSource) -> None:
        """Lets go of what was read: the job was imported anew."""
        self._open.pop(source.path, None)
        self._answers = {key: answer for key, answer in self._answers.items() if key[0] != source.path}

    def forget_answers(self) -> None:
        """Lets go of all answers: what they are held against is another."""
        self._answers.clear()

    def once(self, key: tuple[Any, ...], answer: "Callable[[], Answer]") -> "Answer":
        """The answer to a question, computed when it is first asked; `key` begins with the job's path."""
        if key not in self._answers:
            self._answers[key] = answer()
        return self._answers[key]

    def focus_steps(self, text: str) -> None:
        """`40-60`, `last` or `all`. Raises UsageError for what is no choice of this job's steps."""
        choice = parse_steps(text)
        trace, _ = self.opened(self.job())
        chosen = choice.among(trace.job.steps)
        if chosen is not None:
            trace.select(chosen)
        self.steps = text.strip().lower()

    def focus_rank(self, text: str) -> None:
        """A rank of the job, or `all`. Raises UsageError for another."""
        if text == "all":
            self.rank = None
            return
        ranks = self.opened(self.job())[0].job.ranks
        if not text.isdecimal() or int(text) not in ranks:
            raise UsageError(f"no rank {text} in this job ({ranks[0]}-{ranks[-1]})", "use rank all for every rank")
        self.rank = int(text)

    def value_of(self, reference: Reference) -> Any:  # noqa: ANN401
        """What a reference stands for. Raises UsageError where that is not known."""
        if reference.name not in self.named:
            if reference == Reference(JOB):
                return self.job().name
            raise not_set(reference.name, self.named)
        return field_of(reference, self.named[reference.name])


def not_set(name: str, known: "Sequence[str] | dict[str, Any]") -> UsageError:
    """The error for a name that nothing was given."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    there = f"there are: {', '.join('$' + one for one in known)}" if known else "--set NAME=VALUE gives a value"
    return UsageError(f"${name} is not set", f"did you mean ${near[0]}?" if near else there)
