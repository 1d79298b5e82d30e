"""Asks triage about the running job, so that whoever watches it has its verdict, onset and price, and no other."""

import tempfile
from collections.abc import Sequence
from typing import IO, Final

import msgspec

from kair_capture.coordinator.background import Background
from kair_engine.results.triage import Verdict
from kair_engine.results.watch import WatchedVerdict
from kair_engine.results.whatif import PricedRanks

_STEPS: Final = 20
"""After an alert, which comes as soon as the slow steps are as many."""
_FIRST_STEPS: Final = 200
"""From so many on it is asked though nothing was noticed."""
_SHARE: Final = 0.01
"""Of a core, that it takes while the job trains."""
_PAUSE_S: Final = 10.0
_MOST_S: Final = 60.0
"""A job is summed up without the answer that takes longer."""


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

    Who is slow from the first step on opens no alert where ranks have no peers.
    """

    def __init__(self, command: Sequence[str], known: WatchedVerdict | None = None) -> None:
        """`known`: what it said before the coordinator was started again."""
        self._command, self.last = Background(command), known
        self._output: IO[bytes] | None = None
        self._due_at: int | None = None
        self._began_s, self._began_at = float("-inf"), -1
        self._ended_at: int | None = None
        """The last step of the job that is over, once it was asked about."""

    def look(self, step: int) -> None:
        """Something was noticed, or committed: the steps after it say more of it."""
        self._due_at = step + _STEPS

    def is_final(self, now: float, step: int) -> bool:
        """Return whether the answer about the job that ended in a step is there, or nobody waits for it any more."""
        is_waited_for = self._command.is_running and now - self._began_s < _MOST_S
        return not self._command or (self._ended_at == step and not is_waited_for)

    def turn(self, now: float, step: int, *, is_over: bool) -> str | None:
        """Go on; `""` once there is another answer, what went wrong where there is none, None where nothing happened.

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
        return f"triage could not be asked: {why_not}"

    def _is_due(self, now: float, step: int) -> bool:
        """Whether there is anything to ask, and that takes no more than its share of a core."""
        due_at = min(max(_FIRST_STEPS, 2 * self._began_at), step + 1 if self._due_at is None else self._due_at)
        return step >= due_at and now - self._began_s >= max(_PAUSE_S, self._command.took_s / _SHARE)

    def _read(self) -> str | None:
        if (ended := self._command.ended()) is None or self._output is None:
            return None
        with self._output as output:
            output.seek(0)
            content = output.read()
        if ended:
            return f"triage could not be asked: {ended}"
        try:
            found = msgspec.json.decode(content, type=_Document).data
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return "triage could not be asked: its answer is not readable"
        slow = tuple(
            PricedRanks(one.ranks, one.time_lost_us_per_step, one.since, one.until)
            for one in found.findings
            if one.ranks
        )
        before, self.last = self.last, WatchedVerdict(self._began_at, found.verdict, found.summary, slow)
        return "" if before is None or before.summary != self.last.summary else None

    def close(self) -> None:
        """End what is under way."""
        self._command.close()
        if self._output is not None:
            self._output.close()
