"""The job as it is open on the screens: its trace, what was chosen, answers known, bookmarks and the recording.

Bookmarks: places in a job worth coming back to, kept with it.
"""

import gc
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kair_engine.cancelling import Cancelled, until
from kair_engine.errors import InputError, UsageError
from kair_engine.recording.job_file import BOOKMARKS
from kair_engine.recording.opening import SourceState, state_of
from kair_engine.trace.model import Trace
from kair_tui.cli.job import JobSource, Notes, OneEntryCache, StepChoice, open_source
from kair_tui.cli.places import kept_with
from kair_tui.render.answer import PageOptions
from kair_tui.render.written import Format, written
from kair_tui.shell.session import Recorder
from kair_tui.tui.fix_selection import FixSelection
from kair_tui.tui.question import Question

if TYPE_CHECKING:
    from kair_engine.recording.importing import Progress
    from kair_engine.views.lateness_map import Lateness


_MOST_FLEETING = 100
_LOOK_S: Final = 0.05
"""So often who waits for another's computing looks whether it is still to."""


class JobChangedError(InputError):
    """The files of the open job are no longer those that it was opened from."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was replaced or deleted while it was open", "ctrl+r reads it again")


@dataclass(frozen=True)
class Place:
    """Where in the job a screen is: its name, and what it is about."""

    screen: str
    rank: int | None = None
    operator: str | None = None
    step: int | None = None
    at_us: float | None = None
    """When in the rank's step."""


Wanted = Callable[[], bool]
"""Whether who asks a question still wants its answer."""


def always() -> bool:
    """To the end."""
    return True


@dataclass
class _Asked:
    """A question that somebody wants the answer to."""

    turn: Lock = field(default_factory=Lock)
    """One computes, the others wait."""
    wanted: list[Wanted] = field(default_factory=list)
    """By each who asks."""

    def is_wanted(self) -> bool:
        return any(one() for one in tuple(self.wanted))  # others come and go meanwhile

    def take_turn(self, wanted: Wanted) -> None:
        """Raises Cancelled where it is no longer wanted by then."""
        while not self.turn.acquire(timeout=_LOOK_S):
            if not wanted():
                raise Cancelled


class Session:
    """One open job. Questions may be asked from several threads at once."""

    def __init__(
        self,
        trace: Trace,
        source: JobSource,
        store: Path | None = None,
        recorder: Recorder | None = None,
        read_from: SourceState | None = None,
    ) -> None:
        """`read_from` is how the job's files looked before they were read; None where nobody minds."""
        self.trace = trace
        self.source = source
        self.read_from = read_from
        self.store = store
        """The store that was named with `--store`."""
        self.steps: tuple[int, ...] | None = None
        """The steps that every question is about; None for all."""
        self.recorder = recorder or Recorder()
        self.bookmarks = Bookmarks.of(source)
        self.notes = Notes.of(trace.job)
        self.fixes = FixSelection()
        self.gpu_cost: float | None = None
        """What a GPU hour costs, where that was said."""
        self._caches: defaultdict[str, OneEntryCache] = defaultdict(OneEntryCache)
        """By command: the what-if model, so that one more fix is priced at once; the step of a timeline."""
        self._answers: dict[Question, Any] = {}
        self._fleeting: deque[Question] = deque()
        """Those of the answers that are not kept for long, the oldest first."""
        self._asking: defaultdict[Question, _Asked] = defaultdict(_Asked)
        self._lateness: dict[tuple[int, ...] | None, Lateness] = {}
        self._mapping = Lock()
        self._lock = Lock()
        self._take_what_is_kept()

    @classmethod
    def opened(
        cls, source: JobSource, store: Path | None, recorder: Recorder | None, progress: "Progress"
    ) -> "Session":
        """A job that is read now. Raises what opening it raises."""
        read_from = state_of(source.path)
        return cls(open_source(source, progress=progress), source, store, recorder, read_from)

    def renew(self, trace: Trace, read_from: SourceState | None) -> None:
        """The job was read again: whatever was answered is forgotten; fixes, and steps that are still there, stay."""
        with self._lock:
            self.trace, self.read_from = trace, read_from
            self._answers, self._caches = {}, defaultdict(OneEntryCache)
            self._fleeting.clear()
            self._lateness = {}
        if self.steps is not None:
            there = tuple(step for step in self.steps if step in trace.job.steps)
            self.steps = there if there and there != trace.job.steps else None
        self._take_what_is_kept()

    def _take_what_is_kept(self) -> None:
        """The triage of a stored job, where it is of this job and this code."""
        stored_in = self.trace.job.stored_in
        if stored_in is None:
            return
        from kair_engine.store.kept_answers import kept_triage
        from kair_tui.render.triage import triage_in_words

        if (kept := kept_triage(Path(stored_in))) is not None and kept.steps == self.trace.job.steps:
            self._answers[Question.of("triage")] = triage_in_words(kept)

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

    def ask(self, question: Question, wanted: Wanted = always) -> Any:  # noqa: ANN401
        """The answer, computed once, for as long as one of those who ask for it wants it.

        Raises what the command raises, and Cancelled where this one no longer wants it.
        """
        with self._lock:
            asked = self._asking[question]
            asked.wanted.append(wanted)
        try:
            asked.take_turn(wanted)
            try:
                return self._answered(question, asked.is_wanted)
            finally:
                asked.turn.release()
        finally:
            asked.wanted.remove(wanted)

    def _answered(self, question: Question, wanted: Wanted) -> Any:  # noqa: ANN401
        while (known := self._answers.get(question)) is None:
            trace, answers = self.trace, self._answers
            try:
                with until(partial(self._is_needless, trace, wanted)):
                    answers[question] = self._compute(question)
            except Cancelled:
                if wanted():
                    continue  # The job was read again.
                raise
            if question.entry.fleeting:
                self._keep_for_a_while(question)
                return answers[question]
            # It stays for as long as the job is open: looking through a million rows for garbage takes 0.2 s.
            gc.freeze()
        return known

    def _is_needless(self, trace: Trace, wanted: Wanted) -> bool:
        return not wanted() or trace is not self.trace

    def lateness(self) -> "Lateness":
        """Who was late when, of the chosen steps; worked out once. Raises KairError.

        Of a job that was captured, and all steps, as the history of its steps has it, else as the recording does.
        """
        trace, steps, known = self.trace, self.steps, self._lateness
        with self._mapping:
            if steps not in known:
                known[steps] = _lateness_of(trace, steps)
            return known[steps]

    def known_lateness(self) -> "Lateness | None":
        """The same where it was worked out already."""
        return self._lateness.get(self.steps)

    def _keep_for_a_while(self, question: Question) -> None:
        with self._lock:
            self._fleeting.append(question)
            if len(self._fleeting) > _MOST_FLEETING:
                oldest = self._fleeting.popleft()
                self._answers.pop(oldest, None)
                self._asking.pop(oldest, None)

    def has_ready(self, command: str, key: Hashable) -> bool:
        """Whether what a command's answers are made from is at hand."""
        return self._caches[command].holds(key)

    def _compute(self, question: Question) -> Any:  # noqa: ANN401
        """The answer, computed now. Raises JobChangedError where the files are no longer those that were opened."""
        trace = self.trace
        try:
            answer = question.answer(trace, self._caches[question.command])
        except Exception as error:
            self._require_the_same(trace, error)
            raise
        self._require_the_same(trace)
        return answer

    def _require_the_same(self, trace: Trace, error: Exception | None = None) -> None:
        """Of a job in the store other files may lie under the same names; what was parsed of raw ones can be gone."""
        changed = self.source.stored and self.read_from is not None and state_of(self.source.path) != self.read_from
        gone = error is not None and not all(path.exists() for path in trace.fragments)
        if trace is self.trace and (changed or gone):
            raise JobChangedError(self.name) from error

    def known(self, question: Question) -> Any | None:  # noqa: ANN401
        """The answer if it was computed already."""
        return self._answers.get(question)

    def written(self, question: Question, form: Format, *, ascii_only: bool) -> str:
        """The answer that is known, as the command prints it in that format."""
        from kair_tui.cli.invoke import answer_about

        trace = self.trace if question.steps is None else self.trace.select(question.steps)
        answer = replace(answer_about(question.entry, self.ask(question), trace), notes=self.notes.all())
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


def _lateness_of(trace: Trace, steps: tuple[int, ...] | None) -> "Lateness":
    from kair_engine.views.lateness import lateness, lateness_of_history
    from kair_tui.cli.step_history import history_of

    history = history_of(trace.job) if steps is None else None
    if history is not None and history.can_judge:
        return lateness_of_history(history)
    return lateness(trace if steps is None else trace.select(steps))


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


class Bookmarks:
    """Those of one job, in one file."""

    def __init__(self, file: Path, *, in_store: bool = False) -> None:
        self.file, self._in_store = file, in_store

    @classmethod
    def of(cls, source: JobSource) -> "Bookmarks":
        """In the folder of a job of the store; for raw traces in the user's data folder, never beside the traces."""
        if source.stored:
            return cls(source.path / BOOKMARKS, in_store=True)
        return cls(kept_with(source.path, "bookmarks"))

    def all(self) -> tuple[Bookmark, ...]:
        """In the order they were set; none where the file is missing or damaged."""
        from kair_engine.trace.files import read_kept

        try:
            return msgspec.json.decode(read_kept(self.file), type=tuple[Bookmark, ...])
        except (OSError, ValueError, RecursionError):
            return ()

    def toggle(self, bookmark: Bookmark) -> bool:
        """Sets a bookmark, or takes it away where it was set; True where it is set now. Raises OSError."""
        from kair_engine.trace.files import make_folder, modes_below, write_whole
        from kair_engine.trace.json_text import encode_json

        known = self.all()
        kept = tuple(one for one in known if one != bookmark)
        is_set = len(kept) == len(known)
        if not self._in_store:  # There the folder of a job that was deleted is not made again.
            make_folder(self.file.parent)
        write_whole(self.file, encode_json((*kept, bookmark) if is_set else kept), modes_below(self.file.parent))
        return is_set
