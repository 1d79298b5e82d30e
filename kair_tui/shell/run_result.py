"""The result of a runbook, statement by statement: the answer of `kair run`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from kair_tui.cli.field_values import literal_text
from kair_tui.render.units import plural


def worth_of(value: Any) -> str:  # noqa: ANN401
    """Return a value in a sentence: `1.31`, `null`, `compute and input`; records show their first field."""
    if isinstance(value, dict):
        return worth_of(next(iter(value.values()), None))
    if isinstance(value, list | tuple):
        values = [worth_of(one) for one in value[:_MOST_VALUES]]
        more = [f"{len(value) - _MOST_VALUES} more"] if len(value) > _MOST_VALUES else []
        *others, last = [*values, *more] or ["empty"]
        return f"{', '.join(others)} and {last}" if others else last
    text = f"{value:.6g}" if isinstance(value, float) else literal_text(value)
    return text if len(text) <= _LONGEST_WORTH else f"{text[: _LONGEST_WORTH - 1]}…"


_MOST_VALUES: Final = 6
_LONGEST_WORTH: Final = 80
"""Characters of a text from a recording."""


State = Literal["answered", "set", "met", "not_met", "skipped", "failed", "planned"]


@dataclass(frozen=True)
class StatementRun:
    """One statement of the runbook."""

    line: int
    """Its line in the runbook, counted from 1."""
    statement: str
    """As in the runbook."""
    state: State
    """answered: a command; set: a value or a focus; met, not_met: a condition; skipped: a `when` above did not hold."""
    condition: str | None = None
    """The condition of `when` and `expect`; null for others."""
    command: str | None = None
    """The complete command line for a shell; null if no command ran."""
    status: int = 0
    """The exit status that it would have alone; 10 if an `expect` does not hold."""
    error: str | None = None
    """The error, or the message of `fail`; null if neither."""
    found: str | None = None
    """The actual values of an `expect` that does not hold, in words; null for others."""
    result: Mapping[str, Any] | None = None
    """The whole document of the command, as with --json; null if it has none."""
    duration_us: float | None = None
    """How long it took; null if it did not run."""


@dataclass(frozen=True)
class ListedRunbook:
    """A runbook that `kair run` finds."""

    name: str
    """What to type after `kair run`."""
    is_bundled: bool
    """Whether it comes with Kair; false for a file in the current folder."""
    about: str | None
    """Its purpose, from its first comment; null without one."""


@dataclass(frozen=True)
class RunResult:
    """A runbook from its first statement to the last, or to the first that failed."""

    runbook: str
    """The file, or the name of one that comes with Kair."""
    job_name: str | None
    """The last current job; null if none was needed."""
    status: int
    """The exit status: that of the first failure, or 10 for a finding."""
    summary: str
    """How it ended, in a sentence: the failure, the verdict of the last triage, unmet expectations."""
    jobs_read: int
    """The number of recordings kept open; one for a runbook about one job. `compare` opens its two itself."""
    duration_us: float
    """The total time, including reading the job."""
    statements: tuple[StatementRun, ...]
    """In the order in which they ran."""
    runbooks: tuple[ListedRunbook, ...] = ()
    """Only with --list: those that come with Kair, then those in the current folder."""


def how_it_ended(runs: Sequence[StatementRun], status: int, verdict: str | None) -> str:
    """Return the final sentence of a run; `verdict` is the sentence of its answer, or None."""
    failed = [one for one in runs if one.state == "failed"]
    unmet = [one for one in runs if one.status and one.state != "failed"]
    parts = [f"line {one.line} failed: {one.error or f'it ended with status {one.status}'}" for one in failed[:1]]
    if verdict is not None:
        parts.append(verdict)
    if unmet:
        more = f", and {plural(len(unmet) - 1, 'finding')} more" if len(unmet) > 1 else ""
        parts.append(f"line {unmet[0].line}: {unmet[0].found or _MET}{more}")
    return f"{'; '.join(parts or [_all_well(runs)])}; exit status {status}"


NOTHING_RAN: Final = "nothing was run"
_MET: Final = "--fail-on found what it names"


def _all_well(runs: Sequence[StatementRun]) -> str:
    expected = sum(one.state == "met" and one.statement.startswith("expect") for one in runs)
    if expected:
        return f"{plural(expected, 'expectation')} {'holds' if expected == 1 else 'hold'}"
    answered = sum(one.state == "answered" for one in runs)
    return f"{plural(answered, 'command')} answered" if answered else "no command ran"
