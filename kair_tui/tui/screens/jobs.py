"""The screen of the store: its jobs, to open one of them."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kair.app.question import Question
from kair_engine.results.store import JobsResult, ListedJob
from kair_tui.render.answer import Document, PageOptions
from kair_tui.render.store import minute
from kair_tui.render.units import count, plural
from kair_tui.render.warnings import warnings_in_words
from kair_tui.render.written import Format, written
from kair_tui.tui.filtering import Filter
from kair_tui.tui.frame.command_line import run_command
from kair_tui.tui.frame.screen import Export
from kair_tui.tui.frame.view import FilteredScreen
from kair_tui.tui.question import answer_of_store, entry_of, line_of
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.lists import JobList
from kair_tui.tui.widgets.styles import styles_of

_JOBS = Question.of("jobs")
_FLEET = Question.of("fleet")
_PRICED = Question.of("jobs", whatif=True)
_HOW_TO_BEGIN = (
    "A job comes into the store with",
    "    kair import FOLDER --job NAME",
    "where FOLDER holds the traces of PyTorch's profiler, one file for each rank. Here: type : and then that line.",
    "To look at traces without the store: kair-tui FOLDER",
)
_COSTS = ("slowdown", "waste", "gpu_hours_per_day")
_VERDICTS = ("straggler", "job_wide", "inconclusive", "no_straggler", None)
"""In the order of urgency."""


class JobsScreen(FilteredScreen):
    """Where the program begins when no job is named."""

    DEFAULT_CSS = """
    JobsScreen #store { margin: 1 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("u", "use", "use"),
        Binding("dollar_sign", "whatif", "costs", key_display="$"),
        Binding("J", "fleet", "fleet"),
        Binding("equals_sign", "compare", "compare with the open job", key_display="="),
    ]
    FIELDS = ("name", "verdict", "summary", "ranks", "steps", "operations", "imported", "source", *_COSTS, "cause")
    SORTS = ("name", "imported", "verdict", *_COSTS)
    FIRST = "#jobs"
    of_job = False

    def __init__(self) -> None:
        super().__init__()
        self.place = Place("jobs")
        self._answer: Document | None = None
        self._jobs: Sequence[ListedJob] = ()
        """In displayed order."""
        self._kept: frozenset[str] | None = None
        self._choice: str | None = None
        """The job under the cursor, wherever a new order puts it."""

        self._news = ""
        """A message for when the list is there again."""

    def body(self) -> ComposeResult:
        """Yield the store, and its jobs."""
        yield Paragraphs(self.look, id="store")
        yield Heading(self.look, "jobs", of="jobs")
        yield JobList(self.look, id="jobs")

    def on_mount(self) -> None:
        """Ask once the screen is painted: the answer loads the engine."""
        self.query_one("#store", Paragraphs).show(Paragraph(f"reading the store {self.look.glyphs.ellipsis}", "dim"))
        self.call_after_refresh(self._ask)

    def on_screen_resume(self) -> None:
        """Refresh, because jobs may have been triaged or imported meanwhile."""
        if self._answer is not None and self.is_current:
            self._ask()

    # The store.

    def commands(self) -> Sequence[str]:
        """Return `kair jobs`."""
        return [line_of(_JOBS, "", self._store)]

    def exports(self) -> Sequence[Export]:
        """Return the list."""
        return () if self._answer is None else [Export("jobs", "jobs", self.commands()[0], self._written)]

    def _written(self, form: Format) -> str:
        assert self._answer is not None
        return written(self._answer, entry_of(_JOBS).load_view(), form, PageOptions(ascii_only=self.look.ascii_only))

    @property
    def _store(self) -> Path | None:
        return self.kair.wanted.store

    def _ask(self, question: Question = _JOBS) -> None:
        self.record(line_of(question, "", self._store))
        self.work_out(partial(answer_of_store, question, self._store), self._answered, group="list")

    def action_whatif(self) -> None:
        """Compute what stragglers cost each job, where unknown."""
        self.say(f"working out what stragglers cost {plural(len(self._jobs), 'job')} {self.look.glyphs.ellipsis}")
        self._news = "waste and cause are of all steps of a job"
        self._ask(_PRICED)

    def action_fleet(self) -> None:
        """Open `kair fleet`: how often stragglers occur in all jobs."""
        run_command(self, line_of(_FLEET, "", self._store))

    def action_compare(self) -> None:
        """Open `kair compare`: how the open job differs from the one under the cursor."""
        session, before = self.kair.session, self.chosen
        if session is not None and before is not None:
            run_command(self, shlex.join(("compare", before.name, session.source.name)))

    def _answered(self, answer: Document | None, error: Exception | None) -> None:
        """Show the store's jobs."""
        self.complain(error)
        if answer is not None and answer != self._answer:
            self._take(answer)
        if self._news:
            self.say(self._news if error is None else "")
            self._news = ""

    def _take(self, answer: Document) -> None:
        is_first, self._answer = self._answer is None, answer
        result: JobsResult = answer.result
        self._jobs = result.jobs
        if is_first:
            self._choice = self._preselected(result)
        self._say_store(result)
        self._show()
        self.apply_filter_and_order()
        self.refresh_bindings()

    def _preselected(self, result: JobsResult) -> str | None:
        """Return the open job; else the default of commands."""
        session = self.kair.session
        if session is not None and session.source.stored:
            return session.source.name
        latest = max(result.jobs, key=lambda job: (job.imported_at, job.name), default=None)
        return result.current or (latest.name if latest else None)

    def _say_store(self, result: JobsResult) -> None:
        none = "no readable job" if result.warnings else "no job yet"
        found = plural(len(result.jobs), "job") if result.jobs else none
        lines = [Paragraph(f"{found} in {result.store}", "strong")]
        if not result.jobs:
            lines += [Paragraph(line) for line in _HOW_TO_BEGIN]
        alarm, warnings = f"{self.look.glyphs.alarm} ", warnings_in_words(result.warnings)
        lines += [Paragraph(warning.message, "base", alarm) for warning in warnings]
        self.query_one("#store", Paragraphs).show(*lines)
        for part in (self.query_one(Heading), self.query_one(JobList)):
            part.display = bool(result.jobs)

    def _show(self) -> None:
        jobs = self.query_one(JobList)
        kept = [job for job in self._jobs if self._kept is None or job.name in self._kept]
        choice = self._choice
        jobs.show(kept)
        jobs.move_to(next((at for at, job in enumerate(kept) if job.name == choice), 0))
        self._choice = choice
        glyphs, styles = self.look.glyphs, styles_of(self.look)
        order, descending = self._sort or ("name", False)
        by = f"by {order}" + (", reversed" if descending else "")
        self.query_one(Heading).say([(by, None)], [(f"{glyphs.alarm} straggler found", styles.alarm)])
        self.describe_cursor()

    # The job under the cursor.

    @property
    def chosen(self) -> ListedJob | None:
        """Return the job under the cursor."""
        return self.query_one(JobList).chosen

    def on_choices_moved(self) -> None:
        """Remember the job, for another order."""
        self._choice = self.chosen.name if self.chosen else None
        self.refresh_bindings()

    def about_cursor(self) -> str:
        """Describe the job under the cursor."""
        job = self.chosen
        if job is None:
            return ""
        triaged = f"triaged {minute(job.triaged_at)} UTC" if job.triaged_at else "not triaged yet"
        return self.dotted(job.name, plural(job.operations, "operation"), triaged)

    def on_choices_chosen(self) -> None:
        """Open the job."""
        if self.chosen is not None:
            self.kair.open_job(self.chosen.name)

    def copied(self) -> str:
        """Return the job under the cursor, and the command that lists them all."""
        job = self.chosen
        about = [f"{job.name}: {job.last_summary or 'not triaged yet'}", job.path] if job else []
        return "\n".join([*about, *self.commands()])

    def action_use(self) -> None:
        """Make it the default of commands."""
        if self.chosen is not None:
            question = Question.of("use", job=self.chosen.name)
            then = partial(self._used, question, self.chosen.name)
            self.work_out(partial(answer_of_store, question, self._store), then, group="use")

    def _used(self, question: Question, name: str, _: Document | None, error: Exception | None) -> None:
        if error is not None:
            self.complain(error)
            return
        self.record(line_of(question, "", self._store))
        self._news = f"kair commands that name no job take {name} now"
        self._ask()

    # Filter and sort.

    def offers(self, action: str, of: str = "") -> bool:
        """Offer choices only with jobs, and actions on the open job only with one."""
        if action in ("use", "whatif", "fleet", "filter", "sort", "reverse", "export") and not self._jobs:
            return False
        if action == "compare":
            session, before = self.kair.session, self.chosen if self._jobs else None
            return session is not None and before is not None and before.name != session.source.name
        if action in ("go_to_rank", "recording") and self.kair.session is None:
            return False
        return action != "bookmark" and super().offers(action, of)

    def filter_by(self, wanted: Filter) -> str:
        """Leave out jobs that do not match; return their number."""
        self._kept = frozenset(job.name for job in self._jobs if wanted.matches(_fields(job)))
        self._show()
        return f"{count(len(self._kept))} of {plural(len(self._jobs), 'job')}"

    def sort_by(self, name: str, descending: bool) -> None:
        """Sort by name, latest, urgency, or cost."""
        jobs = sorted(self._jobs, key=lambda job: job.name)
        if name == "imported":
            jobs.sort(key=lambda job: job.imported_at, reverse=True)
        elif name == "verdict":
            jobs.sort(key=lambda job: _VERDICTS.index(job.last_verdict))
        elif name in _COSTS:
            jobs.sort(key=lambda job: -(getattr(job, name) or 0.0))
        self._jobs = jobs[::-1] if descending else jobs
        self._show()


def _fields(job: ListedJob) -> dict[str, object]:
    return {
        "name": job.name,
        "verdict": job.last_verdict,
        "summary": job.last_summary,
        "ranks": job.ranks,
        "steps": job.steps,
        "operations": job.operations,
        "imported": job.imported_at,
        "source": job.source,
        **{name: getattr(job, name) for name in (*_COSTS, "cause")},
    }
