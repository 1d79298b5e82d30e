"""Runs triage on the running job, so that its watchers get triage's verdict, onset and price."""

import tempfile
from collections.abc import Sequence
from typing import IO, Final

import msgspec

from kair_capture.coordinator.background import Background
from kair_engine.results.triage import Verdict
from kair_engine.results.watch import WatchedVerdict
from kair_engine.results.whatif import PricedRanks

_STEPS: Final = 20
"""Steps after an alert, which itself comes after as many slow steps."""
_FIRST_STEPS: Final = 200
"""From this many steps on it runs without an alert."""
_SHARE: Final = 0.01
"""Share of a core that it takes while the job trains."""
_PAUSE_S: Final = 10.0
_MOST_S: Final = 60.0
"""Longest wait for an answer before a job is summed up."""


class _Found(msgspec.Struct):
    ranks: tuple[int, ...]
    time_lost_us_per_step: float
    since: int | None
    until: int | None


class _Data(msgspec.Struct):
    verdict: Verdict
    summary: str
    findings: tuple[_Found, ...]


class _Document(msgspec.Struct):
    data: _Data


class Judging:
    """Runs `command`, which writes triage's answer as JSON: after an alert, as its steps double, and at the end.

    A rank without peers that is slow from the first step raises no alert.
    """

    def __init__(self, command: Sequence[str], known: WatchedVerdict | None = None) -> None:
        """`known` is its answer before the coordinator restarted."""
        self._command, self.last = Background(command), known
        self._output: IO[bytes] | None = None
        self._due_at: int | None = None
        self._began_s, self._began_at = float("-inf"), -1
        self._ended_at: int | None = None
        """The job's last step, once it was judged."""

    def look(self, step: int) -> None:
        """Note an alert or commit at this step: the steps after it show more."""
        self._due_at = step + _STEPS

    def is_final(self, now: float, step: int) -> bool:
        """Return whether the answer on the finished job is there, or is no longer waited for."""
        is_waited_for = self._command.is_running and now - self._began_s < _MOST_S
        return not self._command or (self._ended_at == step and not is_waited_for)

    def turn(self, now: float, step: int, *, is_over: bool) -> str | None:
        """Continue; return "" after a new answer, a text after a failure, else None.

        `is_over`: all that the job left is in the store.
        """
        if self._command.is_running:
            return self._read()
        is_due = self._ended_at != step if is_over else self._is_due(now, step)
        if not self._command or step < 0 or not is_due:
            return None
        self._due_at, self._began_s, self._began_at = None, now, step
        self._ended_at = step if is_over else None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed once it is read)
        if (why_not := self._command.begin(self._output, is_urgent=is_over)) is None:
            return None
        self._output.close()
        return f"triage failed: {why_not}"

    def _is_due(self, now: float, step: int) -> bool:
        """Return whether there is news to judge, within its share of a core."""
        due_at = min(max(_FIRST_STEPS, 2 * self._began_at), step + 1 if self._due_at is None else self._due_at)
        return step >= due_at and now - self._began_s >= max(_PAUSE_S, self._command.took_s / _SHARE)

    def _read(self) -> str | None:
        if (ended := self._command.ended()) is None or self._output is None:
            return None
        with self._output as output:
            output.seek(0)
            content = output.read()
        if ended:
            return f"triage failed: {ended}"
        try:
            found = msgspec.json.decode(content, type=_Document).data
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return "triage failed: its answer is not readable"
        slow = tuple(
            PricedRanks(one.ranks, one.time_lost_us_per_step, one.since, one.until)
            for one in found.findings
            if one.ranks
        )
        before, self.last = self.last, WatchedVerdict(self._began_at, found.verdict, found.summary, slow)
        return "" if before is None or before.summary != self.last.summary else None

    def close(self) -> None:
        """End the current run."""
        self._command.close()
        if self._output is not None:
            self._output.close()
