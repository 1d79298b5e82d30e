"""What the commands of one process share: the job that is open, and what was answered about it."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kair_tui.cli.one_entry_cache import OneEntryCache

if TYPE_CHECKING:
    from kair_engine.trace.model import Trace
    from kair_tui.render.answer import Answer


class SharedWork:
    """Of a runbook: its lines are about the same job again and again, and many of them ask the same."""

    def __init__(self) -> None:
        self._jobs = OneEntryCache()
        self._answers: dict[str, Answer] = {}
        self._about: Hashable = None

    def trace(self, job: Hashable, make: "Callable[[], Trace]") -> "Trace":
        """The job that was named so, opened now where another is kept. Raises what `make` raises."""
        if job != self._about:
            self._answers, self._about = {}, job
        trace: Trace = self._jobs.of(job, make)
        return trace

    def answer(self, command: str, arguments: dict[str, Any], make: "Callable[[], Answer]") -> "Answer":
        """The answer about the job that is kept; asked anew where the command writes files of its own."""
        if any(isinstance(value, Path) for value in arguments.values()):
            return make()
        question = repr((command, sorted(arguments.items())))
        if question not in self._answers:
            self._answers[question] = make()
        return self._answers[question]
