"""What ended a job, from how its ranks ended: one record, from which every face's verdict and words follow.

A rank is named only where its own end, or its leaving, brought about the others'. The same signal on all ranks is the
scheduler's, the launcher's or a person's, and ranks that lost their peers' connections are victims.
"""

import re
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from kair_engine.frozen import dataclass
from kair_engine.results.evidence_kinds import signal_name
from kair_engine.results.watch import StandingRank

_TOGETHER_NS: Final = 2 * 10**9
"""A process that dies ends its peers' connections at once: they end by an exception in less. A rank that left in order
may be seen to be gone that much later than those whose connections it closed."""
_POLITE: Final = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""Launchers end the other ranks by these."""
_OF_ITSELF: Final = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)
)
"""Nobody sends these: the process's own instruction failed."""
_SHELL: Final = 128
"""A shell's exit status for a child that a signal ended is the signal's number beyond this."""
_FEWEST: Final = 3
"""Of so many ranks one can be in another step than the others."""
_OF_OTHERS: Final = re.compile(
    r"connection (was )?(reset|closed|refused)|broken pipe|remote process (has )?(exited|terminated)|"
    r"econnreset|socket (timeout|error)|timed out waiting|ncclremoteerror|peer",
    re.IGNORECASE,
)
"""What an exception says that others' ends brought about."""

_How = Literal["fault", "killed", "asked", "error", "victim", "aborted"]
"""`fault`: by its own instruction, or for want of memory; `killed`: by a signal that launchers send last, or without a
trace of how; `asked`: by one that they send first; `error`: by an exception or an exit status; `victim`: by an
exception that others' ends bring about; `aborted`: by SIGABRT, which a lost connection and a mismatched call bring
about as well as a defect."""


@dataclass(frozen=True)
class Ending:
    """What ended a job, or keeps it from going on, as far as the ends of its ranks show it."""

    ranks: tuple[StandingRank, ...] = ()
    """Whose end, or leaving, it follows from; empty where no rank's does."""
    is_from_outside: bool = False
    """All ranks got the same signal."""
    usual_step: int = -1
    """The one that the others were in, where `ranks` stand apart by another one alone; else −1."""
    first: StandingRank | None = None
    """Who aborted or died first, where no rank's end says why."""
    signal: int = 0
    """That came from outside; 0 where nobody saw which."""
    is_on_all: bool = True
    """Whether every rank died of it, as far as is known."""

    @property
    def is_by_step(self) -> bool:
        """Return whether `ranks` stand apart by their step alone."""
        return self.usual_step >= 0

    @property
    def in_words(self) -> str:
        """Say what ended the job, where no rank's own end did; empty where one did, or nothing ended."""
        if self.is_from_outside:
            which = signal_name(self.signal) if self.signal else "a signal that left no trace"
            return f"the job was ended from outside ({which} on {'all' if self.is_on_all else 'several'} ranks)"
        if self.first is None:
            return ""
        if self.is_by_step:
            (one,) = self.ranks
            where = f"in step {one.step} when the others were in step {self.usual_step}"
            return f"rank {one.rank} was {where}: their calls did not match, and rank {self.first.rank} aborted"
        how = "of SIGABRT" if _how(self.first) == "aborted" else "of a lost connection"
        return f"rank {self.first.rank} died first, {how}, which a failure of any other rank causes as well"


def ending_of(ranks: Sequence[StandingRank]) -> Ending:
    """Return what ended the job; of nobody where no rank died or left, or where that says nothing."""
    died = sorted((one for one in ranks if one.state == "died"), key=lambda one: one.at_ns)
    first = [one for one in died if one.at_ns - died[0].at_ns <= _TOGETHER_NS]
    how = {one.rank: _how(one) for one in first}

    def by(*kinds: _How) -> tuple[StandingRank, ...]:
        return tuple(one for one in first if how[one.rank] in kinds)

    outside = _from_outside(ranks, first, how)
    unheard = tuple(one for one in ranks if one.state == "unheard")
    if found := by("fault") or (() if outside else by("killed")) or by("error")[:1] or unheard:
        return Ending(found)
    if found := _left(ranks, died, are_lost=bool(by("victim", "aborted"))):
        return Ending(found)
    if outside is not None:
        return outside
    if len(found := by("asked")) == 1 and not by("aborted"):
        return Ending(found)
    return _without_a_cause(ranks, by("aborted"), by("victim") or tuple(first)) if first else Ending()


def _how(one: StandingRank) -> _How:
    sent = _signal(one)
    rules: tuple[tuple[bool, _How], ...] = (
        (sent in _OF_ITSELF or one.known_by == "out_of_memory", "fault"),
        (sent == signal.SIGABRT, "aborted"),
        (sent not in (0, *_POLITE), "killed"),
        (_OF_OTHERS.search(one.error) is not None, "victim"),
        (sent in _POLITE, "asked"),
        (one.exit_status is None and not one.error, "killed"),
    )
    return next((how for holds, how in rules if holds), "error")


def _signal(one: StandingRank) -> int:
    """Which signal ended it, by itself or as a shell or Python states it; 0 where none did, or nobody saw it."""
    if one.error.startswith("KeyboardInterrupt"):
        return signal.SIGINT
    by_shell = (one.exit_status or 0) - _SHELL
    return one.signal or (by_shell if by_shell in (*_POLITE, signal.SIGKILL) else 0)


def _from_outside(ranks: Sequence[StandingRank], first: Sequence[StandingRank], how: dict[int, _How]) -> Ending | None:
    """Return that ranks died of one signal, and none of anything else than a connection that was lost after that.

    Two ranks are enough for a signal that launchers send first; of any other, or of one that nobody saw, it is all.
    """
    sent = [one for one in first if how[one.rank] in ("asked", "killed") or (how[one.rank] == "victim" and one.signal)]
    signals = {_signal(one) for one in sent}
    if len(signals) != 1 or any(one.state == "unheard" for one in ranks):
        return None
    begun = min(one.at_ns for one in sent)
    if any(how[one.rank] != "victim" or one.at_ns < begun for one in first if one not in sent):
        return None
    needed = min(2, len(ranks)) if signals <= _POLITE else max(2, len(ranks))
    if len(sent) < needed:
        return None
    is_on_all = all(one.state in ("died", "ended") for one in ranks)
    return Ending(is_from_outside=True, signal=signals.pop(), is_on_all=is_on_all)


def _left(ranks: Sequence[StandingRank], died: Sequence[StandingRank], *, are_lost: bool) -> tuple[StandingRank, ...]:
    """Return who ended in order while others lived, or had come at most a step farther when they died.

    `are_lost`: some died of a lost connection; else who ended about then was asked to, as they were.
    """
    ended = tuple(one for one in ranks if one.state == "ended")
    if not died:
        return ended if any(one.state == "lives" for one in ranks) else ()
    farthest = max(one.step for one in died)
    until = died[0].at_ns + (_TOGETHER_NS if are_lost else -_TOGETHER_NS)
    return tuple(one for one in ended if one.at_ns <= until and (one.step < 0 or farthest - one.step <= 1))


def _without_a_cause(
    ranks: Sequence[StandingRank], aborted: Sequence[StandingRank], others: Sequence[StandingRank]
) -> Ending:
    """Return the one rank that was in another step than all others, where another one aborted; else who died first.

    Its calls met other calls. Of three ranks the one that is behind may wait for the other two, which ran into each
    other's calls.
    """
    steps = Counter(one.step for one in ranks)
    usual = steps.most_common(1)[0][0]
    odd = [one for one in ranks if one.step != usual]
    if aborted and len(odd) == 1 and odd[0] not in aborted and min(steps) >= 0 and len(ranks) >= _FEWEST:
        (one,) = odd
        if one.step > usual or len(ranks) > _FEWEST:
            return Ending((one,), first=aborted[0], usual_step=usual)
    return Ending(first=[*aborted, *others][0])
