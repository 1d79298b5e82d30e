"""A session: opens a job, answers questions about it, and keeps answers. Every face asks through it.

Asking writes nothing. Only `keep` does.
"""

import gc
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self

from kair.app.jobs import JobSource, blaming_files, files_of, locate, read_source
from kair.app.notes import Notes
from kair.app.places import store_root
from kair.app.question import (
    BY_COLLECTIVES,
    BY_HISTORY,
    BY_LOG,
    Answer,
    Given,
    InWords,
    Question,
    Watcher,
    answered,
    unchanged,
    unwatched,
    warnings_of,
    write,
)
from kair.app.remembered import OneEntryCache
from kair_engine.cancelling import Cancelled, until
from kair_engine.errors import InputError, UsageError
from kair_engine.progress import Look, telling

if TYPE_CHECKING:
    from kair.app.step_choice import StepChoice
    from kair_engine.results.localize import ChosenBaseline
    from kair_engine.trace.model import Trace

_MOST_FLEETING: Final = 100
"""Answers of questions that are asked anew with every key."""
_LOOK_S: Final = 0.05
"""Between two looks whether the answer that another thread computes is still wanted."""

Wanted = Callable[[], bool]
"""Whether whoever asks a question still wants its answer."""


def always() -> bool:
    """Return True: the answer is wanted to the end."""
    return True


class JobChangedError(InputError):
    """Raised if the open job's files have changed since it was opened."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was replaced or deleted while it was open", "ctrl+r reads it again")


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
        """Wait for a turn. Raises Cancelled if the answer is no longer wanted by then."""
        while not self.turn.acquire(timeout=_LOOK_S):
            if not wanted():
                raise Cancelled


class Session:
    """Keeps one job open. Several threads may ask at once; equal questions are computed once."""

    watches_files = False
    """Whether the job is to stay the same while it is open: then a question fails once its files are others."""

    def __init__(
        self,
        trace: "Trace",
        source: JobSource,
        *,
        store: Path | None = None,
        progress: Watcher = unwatched,
        remembers: bool = True,
        in_words: InWords = unchanged,
        read_from: Hashable = None,
    ) -> None:
        """Take a job that was read.

        `store` is the named store, None for the default one. With `remembers`, models and answers stay in memory for
        the next question. `in_words` adds the sentences that a face shows. `read_from` is the state of the job's files
        before they were read; None if changes do not matter.
        """
        self.trace, self.source, self.store = trace, source, store
        self.progress, self.read_from = progress, read_from
        self.notes = Notes.of(trace.job)
        self._remembers, self._in_words = remembers, in_words
        self._caches: defaultdict[str, OneEntryCache] = defaultdict(OneEntryCache)
        """By command: the what-if model, so that one more fix is priced at once; the step of a timeline."""
        self._answers: dict[Question, tuple[Hashable, Answer]] = {}
        """With what each rests on besides the trace."""
        self._fleeting: deque[Question] = deque()
        """Those of the answers that are not kept for long, the oldest first."""
        self._asking: defaultdict[Question, _Asked] = defaultdict(_Asked)
        self._kept: Answer | None = None
        """The last answer of which something was written."""
        self._lock = Lock()

    @classmethod
    def open(
        cls,
        job: str | Path | JobSource | None,
        *,
        store: Path | None = None,
        progress: Watcher = unwatched,
        **how: Any,  # noqa: ANN401
    ) -> Self:
        """Open a job: a name in the store, a path, or None for the job in use; `how` as for the class.

        Raises InputError for a job that is missing or unreadable.
        """
        source = job if isinstance(job, JobSource) else locate(None if job is None else str(job), store)
        trace, read_from = read_source(source, progress=progress)
        return cls(trace, source, store=store, progress=progress, read_from=read_from, **how)

    def renew(self, trace: "Trace", read_from: Hashable) -> None:
        """Take the job as it was read again, and forget all answers."""
        with self._lock:
            self.trace, self.read_from = trace, read_from
            self._answers, self._caches = {}, defaultdict(OneEntryCache)
            self._fleeting.clear()

    def files_now(self) -> Hashable:
        """Return the state of the job's files now: `read_from` while nothing changed, None if they are gone."""
        return files_of(self.source)

    @property
    def name(self) -> str:
        """The job's name for people."""
        return self.trace.job.name

    def ask(self, question: Question, wanted: Wanted = always) -> Answer:
        """Answer a question; equal ones share a computation, which goes on while one caller wants it.

        Raises what the question raises (KairError), and Cancelled if this caller no longer wants it.
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

    def tell(self, question: Question, share: float, what: str) -> None:  # noqa: ARG002 - faces show it by question
        """Receive how far an answer is computed, from 0 to 1, in the thread that computes it."""
        self.progress(int(100 * share), 100, what)

    def look(self, question: Question) -> Look | None:  # noqa: ARG002 - faces look by question
        """Return what takes the result as more and more of it is known; None where nobody looks before it is whole."""
        return None

    def keep(self, answer: Answer) -> None:
        """Keep verdict, result and predictions of a stored job's triage of all steps.

        The result is used again only while recording, evidence, baseline, price, history and code stay the same.
        Nothing is written for other answers, into a store that is not writable, or if $KAIR_READ_ONLY is set.
        """
        if answer is not self._kept:
            write(answer)
            self._kept = answer if answer.writes is not None else self._kept

    def keep_steps(self) -> None:
        """Keep all steps in memory from now on, if they fit, because many questions will come."""
        from kair_engine.trace.batches import keeping_steps

        self.trace = keeping_steps(self.trace)

    def known(self, question: Question) -> Answer | None:
        """Return an answer that was computed before, if nothing that it depends on has changed since."""
        rests_on, answer = self._answers.get(question, (None, None))
        return answer if answer is not None and rests_on == self._rests_on(question) else None

    def has_ready(self, command: str, key: Hashable) -> bool:
        """Return whether the model behind a command's answers is in memory."""
        return self._caches[command].holds(key)

    def narrowed(self, steps: tuple[int, ...] | None) -> "Trace":
        """Return the trace of these steps, None for all. Raises UsageError for a step that cannot be analysed.

        A captured job may have steps that were not sampled: the trace then has their times and no operations.
        """
        if steps is None or self.trace.job.stored_in is None or not set(steps) - set(self.trace.job.steps):
            return self.trace if steps is None else self.trace.select(steps)
        from kair.app.step_history import recorded_only

        recorded = recorded_only(self.trace.job)
        return (recorded if recorded.steps else self.trace).select(steps)

    def chosen(self, choice: "StepChoice") -> tuple[int, ...] | None:
        """Return the sampled steps of a choice, else a captured job's recorded ones; None for all.

        Raises UsageError for a range without any step.
        """
        try:
            return choice.among(self.trace.job.steps)
        except UsageError:
            if self.trace.job.stored_in is None:
                raise
            from kair.app.step_history import recorded_only

            if not (recorded := recorded_only(self.trace.job)).steps:
                raise
            return choice.among(recorded.steps)

    def _answered(self, question: Question, wanted: Wanted) -> Answer:
        if question.command in _LIVE:
            return self._asked_of(question)
        rests_on = self._rests_on(question)
        while True:
            known = self._answers.get(question)
            if known is not None and known[0] == rests_on:
                return known[1]
            trace, answers = self.trace, self._answers
            try:
                heard = telling(partial(self.tell, question), self.look(question))
                with until(partial(self._is_needless, trace, wanted)), heard:
                    answer = self._compute(question)
            except Cancelled:
                if wanted():
                    continue  # The job was read again.
                raise
            if self._remembers and not question.argument("evidence"):  # named files may change
                answers[question] = rests_on, answer
                if question.command in _FLEETING:
                    self._keep_for_a_while(question)
                else:
                    # It stays for as long as the job is open: looking through a million rows for garbage takes 0.2 s.
                    gc.freeze()
            return answer

    def _is_needless(self, trace: "Trace", wanted: Wanted) -> bool:
        return not wanted() or trace is not self.trace

    def _rests_on(self, question: Question) -> Hashable:
        """Return what the answer depends on besides the trace: the baseline's file, what lies next to the recording.

        What capture writes of a running job changes all the time: an open job stays as it was read, until `renew`.
        """
        if not self._remembers or question.command not in _BESIDE:
            return None
        from kair.app.investigate import is_captured, state_beside

        job = self.trace.job
        return self._baseline_state(question), None if is_captured(job) else state_beside(job)

    def _baseline_state(self, question: Question) -> Hashable:
        store = store_root(self.store)
        if question.baseline == "none" or (question.baseline is None and not (store / ".baseline").exists()):
            return None
        from kair_engine.baselines import Baselines

        return Baselines(store).state_of(question.baseline)

    def _keep_for_a_while(self, question: Question) -> None:
        with self._lock:
            self._fleeting.append(question)
            if len(self._fleeting) > _MOST_FLEETING:
                oldest = self._fleeting.popleft()
                self._answers.pop(oldest, None)
                self._asking.pop(oldest, None)

    def _compute(self, question: Question) -> Answer:
        """Raise JobChangedError where the files are no longer those that were opened."""
        trace = self.trace
        try:
            answer = self._asked_of(question)
        except Exception as error:
            self._require_the_same(trace, error)
            raise
        self._require_the_same(trace)
        return answer

    def _asked_of(self, question: Question) -> Answer:
        given = self.given(question)
        with blaming_files(given.trace), _on_workers(question.workers, given) as given:
            result, writes = answered(question, given)
        job, steps = given.trace.job, given.trace.steps
        warnings = (*job.warnings, *warnings_of(result))
        return self._in_words(Answer(question, result, job, steps, warnings, self.notes.all(), writes))

    def given(self, question: Question) -> Given:
        """Return the inputs of an answering function. Raises UsageError for unknown steps or an unknown baseline."""
        trace, baseline = self.narrowed(question.steps), None
        by_collectives = BY_COLLECTIVES if trace.job.is_of_collectives else BY_HISTORY
        if question.command not in (BY_LOG if trace.job.is_log else by_collectives):
            from kair.app.step_history import require_sampled

            require_sampled(trace, f"kair {question.command}")
        if question.command in _COMPARED:
            baseline = chosen_baseline(question.baseline, store_root(self.store))
        cache = self._caches[question.command] if self._remembers else None
        return Given(trace, baseline, self.progress, cache)

    def _require_the_same(self, trace: "Trace", error: Exception | None = None) -> None:
        """Of a job in the store other files may lie under the same names; what was parsed of raw ones can be gone."""
        if not self.watches_files:
            return
        grows = trace.job.is_recorded_only  # a running job's steps
        changed = self.source.stored and not grows and self.files_now() != self.read_from is not None
        gone = error is not None and not all(path.exists() for path in trace.fragments)
        if trace is self.trace and (changed or gone):
            raise JobChangedError(self.name) from error


_FLEETING: Final = frozenset({"timeline", "query"})
"""Asked anew with every key or line, and answered at once: few of their answers are remembered."""
_LIVE: Final = frozenset({"confirm"})
"""A small file that a running coordinator writes anew, whatever the recording is: read whenever it is asked for."""
_COMPARED: Final = frozenset({"triage", "localize", "query"})
"""Compared with a baseline; a query can be about triage's findings."""
_BESIDE: Final = _COMPARED | {"evidence"}
"""These depend on what lies next to the recording, too."""


def chosen_baseline(wanted: str | None, store: Path) -> "ChosenBaseline | None":
    """Return the baseline of that name, or the one in use; None for `none`, or if none is in use.

    Raises UsageError for an unknown one.
    """
    if wanted == "none" or (wanted is None and not (store / ".baseline").exists()):
        return None
    from kair_engine.baselines import Baselines  # loads NumPy and msgspec
    from kair_engine.results.localize import ChosenBaseline

    kept = Baselines(store)
    name = wanted or kept.current()
    return None if name is None else ChosenBaseline(name, kept.load(name), named=wanted is not None)


@contextmanager
def _on_workers(address: str | None, given: Given) -> Iterator[Given]:
    """Yield the inputs with the requested cluster, and leave the cluster in the end."""
    if address is None:
        yield given
        return
    from kair_engine.dask_workers import DaskWorkers

    with closing(DaskWorkers(address)) as workers:
        yield replace(given, trace=replace(given.trace, workers=workers))
