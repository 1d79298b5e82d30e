"""The state of a shell: the open jobs, the focus, the answers that were given a name.

Records a runbook: the commands that show what was looked at, one a line, for `kair run` and for reading.

What a runbook did, statement by statement: the answer of `kair run`.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from kair.app.jobs import JobSource, is_stored, locate
from kair.app.places import store_root
from kair.app.question import unwatched
from kair.app.session import Session
from kair.app.step_choice import parse_steps, step_text
from kair_engine.errors import InputError, UsageError
from kair_tui.cli.asking import open_session
from kair_tui.cli.field_values import literal_text
from kair_tui.cli.fields import Named, field_of
from kair_tui.cli.words import Reference
from kair_tui.render.units import plural

if TYPE_CHECKING:
    from kair.app.question import Watcher


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
        self._open: dict[tuple[Path, ...], Session] = {}

    def hold(self, session: Session, steps: Sequence[int] | None) -> None:
        """Takes a job that is open elsewhere, and the steps chosen there."""
        source = session.source
        self._open[source.paths] = session
        if self.source != source:
            self.rank = None
        self.source, self.steps = source, "all" if steps is None else step_text(steps)

    def job(self) -> JobSource:
        """The job in hand, else the one that any command would take. Raises InputError where there is none."""
        if self.source is None:
            self.source = locate(None, self.store)
            self.note(f"using job {self.source.name} ({self.source.why})")
        return self.source

    def take(self, name: str, files: Sequence[Path] = ()) -> JobSource:
        """Takes another job in hand, or that of several files; the focus was the other's, and goes.

        Raises InputError where there is none.
        """
        folder = store_root(self.store) / name
        try:
            self.source = locate(name, self.store, files)
        except InputError:
            # A job that runs, and of which nothing was recorded yet.
            if Path(name).name != name or not (folder / "mitigate").is_dir():
                raise
            self.source = JobSource(name, folder, stored=True)
        self.steps, self.rank = "all", None
        return self.source

    def opened(self, source: JobSource) -> Session:
        """The job, which is read once. Raises InputError."""
        if source.paths not in self._open:
            session = open_session(source, store=self.store, progress=self.progress)
            session.keep_steps()
            self._open[source.paths] = session
            self.jobs_read += 1
        return self._open[source.paths]

    def named_source(self, name: str, store: Path | None, files: Sequence[Path] = ()) -> JobSource:
        """The job that a line names, which may be the one in hand; of several files, the one that they are."""
        if files:
            return locate(name, store, files)
        if self.source is not None and self.source.name == name and store == self.store:
            return self.source
        return locate(name, store)

    def forget(self, source: JobSource) -> None:
        """Lets go of what was read: the job was imported anew."""
        self._open.pop(source.paths, None)

    def focus_steps(self, text: str) -> None:
        """`40-60`, `last` or `all`. Raises UsageError for what is no choice of this job's steps."""
        choice = parse_steps(text)
        session = self.opened(self.job())
        session.narrowed(choice.among(session.trace.job.steps))
        self.steps = text.strip().lower()

    def focus_rank(self, text: str) -> None:
        """A rank of the job, or `all`. Raises UsageError for another."""
        if text == "all":
            self.rank = None
            return
        ranks = self.opened(self.job()).trace.job.ranks
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


_RUN_BY: Final = "#!/usr/bin/env -S kair run"
_EXECUTABLE: Final = 0o111
_JOB: Final = 2
"""Where in a command the job stands, after `kair` and the command's name."""


class Recorder:
    """Writes each command once it is asked, so that nothing is lost where the program ends."""

    def __init__(self) -> None:
        self.file: Path | None = None
        """Where it records to; None while it does not."""
        self._known: set[str] = set()

    def start(self, path: Path, job: str) -> None:
        """Begins a new file about `job`. Raises UsageError where `path` exists, OSError where it cannot be written."""
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(f"{_RUN_BY}\n# what was looked at in {' '.join(job.split())}\n")
            path.chmod(path.stat().st_mode | _EXECUTABLE)
        except FileExistsError:
            raise UsageError(f"{path} exists already", "choose another name") from None
        self.file, self._known = path.absolute(), set()

    def add(self, command: str) -> None:
        """Records a command, once however often it was asked. Raises OSError where the file cannot be written."""
        line = from_anywhere(command)
        if self.file is None or line in self._known:
            return
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        self._known.add(line)

    def stop(self) -> Path | None:
        """Ends the recording and tells where it is."""
        done, self.file = self.file, None
        return done


def from_anywhere(command: str) -> str:
    """The command with the whole paths of what it names by relative ones; names of jobs in the store stay."""
    words = shlex.split(command)
    root = Path(words[words.index("--store") + 1]) if "--store" in words[:-1] else None
    for at in range(_JOB, len(words)):
        is_place = words[at - 1] in ("--store", "--timeline", "--out")
        is_source = (at == _JOB and not is_stored(words[at], store_root(root))) or words[1] == "import"
        if is_place or (is_source and not words[at].startswith("-") and Path(words[at]).exists()):
            words[at] = str(Path(words[at]).absolute())
    return shlex.join(words)


def worth_of(value: Any) -> str:  # noqa: ANN401
    """A value of an answer in a sentence: `1.31`, `null`, `compute and input`; records go by their first field."""
    if isinstance(value, dict):
        return worth_of(next(iter(value.values()), None))
    if isinstance(value, list | tuple):
        told = [worth_of(one) for one in value[:_MOST_TOLD]]
        more = [f"{len(value) - _MOST_TOLD} more"] if len(value) > _MOST_TOLD else []
        *others, last = [*told, *more] or ["empty"]
        return f"{', '.join(others)} and {last}" if others else last
    text = f"{value:.6g}" if isinstance(value, float) else literal_text(value)
    return text if len(text) <= _LONGEST_WORTH else f"{text[: _LONGEST_WORTH - 1]}…"


_MOST_TOLD: Final = 6
_LONGEST_WORTH: Final = 80
"""Characters of a text from a recording."""


State = Literal["answered", "set", "met", "not_met", "skipped", "failed", "planned"]


@dataclass(frozen=True)
class StatementRun:
    """One statement of the runbook."""

    line: int
    """Its line in the runbook, counted from 1."""
    statement: str
    """As the runbook has it."""
    state: State
    """answered: a command; set: a value or a focus; met, not_met: a condition; skipped: a `when` above did not hold."""
    condition: str | None = None
    """Of `when` and `expect`; null of others."""
    command: str | None = None
    """The complete line that a shell needs for the same; null where no command ran."""
    status: int = 0
    """The exit status that it would have had alone; 10 where an `expect` did not hold."""
    error: str | None = None
    """What went wrong, or the message of `fail`; null where nothing did."""
    found: str | None = None
    """Of an `expect` that does not hold: what its fields are instead, in words; null of others."""
    result: Mapping[str, Any] | None = None
    """The whole document of the command, as it prints with --json; null where there is none."""
    duration_us: float | None = None
    """How long it took; null where it did not run."""


@dataclass(frozen=True)
class RunResult:
    """A runbook from its first statement to the last, or to the first that failed."""

    runbook: str
    """The file, or the name of one that comes with Kair."""
    job_name: str | None
    """The job in hand at the end; null where none was needed."""
    status: int
    """The exit status: of the first failure, or 10 for a finding."""
    summary: str
    """How it ended, in a sentence: what failed, the verdict of the last triage, what was expected and is not so."""
    jobs_read: int
    """How many recordings were opened to stay; one for a runbook about one job. `compare` opens its two for itself."""
    duration_us: float
    """All of it, the reading of the job included."""
    statements: tuple[StatementRun, ...]
    """In the order in which they ran."""


def how_it_ended(runs: Sequence[StatementRun], status: int, verdict: str | None) -> str:
    """The sentence that a run ends with; `verdict` is the answer that it is about, in a sentence; None of none."""
    failed = [one for one in runs if one.state == "failed"]
    unmet = [one for one in runs if one.status and one.state != "failed"]
    parts = [_failure(failed[0])] if failed else []
    if verdict is not None:
        parts.append(verdict)
    if unmet:
        more = f", and {plural(len(unmet) - 1, 'finding')} more" if len(unmet) > 1 else ""
        parts.append(f"line {unmet[0].line}: {unmet[0].found or _MET}{more}")
    return f"{'; '.join(parts or [_all_well(runs)])}; exit status {status}"


NOTHING_RAN: Final = "nothing was run"
_MET: Final = "--fail-on found what it names"


def _failure(run: StatementRun) -> str:
    return f"line {run.line} failed: {run.error or f'it ended with status {run.status}'}"


def _all_well(runs: Sequence[StatementRun]) -> str:
    expected = sum(one.state == "met" and one.statement.startswith("expect") for one in runs)
    if expected:
        return f"{plural(expected, 'expectation')} {'holds' if expected == 1 else 'hold'}"
    answered = sum(one.state == "answered" for one in runs)
    return f"{plural(answered, 'command')} answered" if answered else "no command ran"
