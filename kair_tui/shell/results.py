"""What a runbook did, statement by statement: the answer of `kair run`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    jobs_read: int
    """How many recordings were opened to stay; one for a runbook about one job. `compare` opens its two for itself."""
    duration_us: float
    """All of it, the reading of the job included."""
    statements: tuple[StatementRun, ...]
    """In the order in which they ran."""
