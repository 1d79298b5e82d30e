"""Handles hangs and deaths: if the job hangs or a rank dies, all ranks are asked where they are, and one is named.

Their answers are in `hangs/<number>/` of the job's folder: `rank-<r>.json` (PyTorch's Flight Recorder),
`rank-<r>.stacks` (Python, all threads), `rank-<r>.native` (py-spy, if it is installed), and `ranks.json`.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from kair_capture.coordinator.alert_text import standing_in_words
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.step_table import StepTable
from kair_capture.places import JobPlaces
from kair_capture.wire import Standing
from kair_engine.ranks import Rank
from kair_engine.readers.flight_recorder import progress_of
from kair_engine.results.stuck import waiting_in
from kair_engine.results.triage import TriageResult
from kair_engine.results.watch import Hang, HangKind, StandingKind, StandingRank
from kair_engine.trace.calls import GroupProgress
from kair_engine.trace.files import make_folder, read_kept, write_whole
from kair_engine.trace.model import Job, StepTimes, Trace
from kair_engine.triage.hangs.ending import ending_of
from kair_engine.triage.hangs.standing import standing_verdict

_ANSWERS_S: Final = 9.0
"""Ranks have 3 s to answer, and the store as long; a missing host is known within 6 s."""
_TOGETHER_S: Final = 2.0
"""A dying rank takes others along; all ends are reported within a second."""
_MOST_DUMP: Final = 1 << 24


class Hangs:
    """Hangs of one job. `turn` is called a few times a second."""

    def __init__(self, places: JobPlaces, table: StepTable, hosts: Hosts, last: Hang | None) -> None:
        """`last` is the hang that an earlier coordinator knew."""
        self._places, self._table, self._hosts = places, table, hosts
        self.last = last
        self.number = max(last.number if last else 0, *_numbers(places.hangs))
        """Number of the last hang for which ranks are asked; hangs of other runs of the job keep theirs."""
        self._open: tuple[Literal["stalled", "rank_died"], str, float] | None = None
        """Its kind and when it was noticed (UTC, and monotonic s); None while ranks are not asked."""
        self._died: dict[int, Standing] = {}
        self._ended: dict[int, Standing] = {}
        self._lives: dict[int, Standing] = {}
        self._until_ns = max((one.at_ns for one in last.ranks), default=0) if last else 0
        self._answer: Future[Hang] | None = None
        self._work = ThreadPoolExecutor(1, "hangs")
        self._steps_then: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        """Return whether the job hung, or lost a rank, and has not continued since."""
        return self._open is not None or (self.last is not None and not self.last.over)

    @property
    def is_undecided(self) -> bool:
        """Return whether the job hung, or lost a rank, and the cause is not known yet."""
        return self._open is not None or (bool(self._died) and not self.is_open)

    def hear(self, told: Standing) -> None:
        """Store where a rank stands, or how it ended; what an earlier coordinator knew is skipped."""
        if told.lives:
            if told.hang == self.number:
                self._lives[told.rank] = told
        elif told.at_ns > self._until_ns:
            (self._ended if told.exit_status == 0 else self._died)[told.rank] = told

    def lives(self, ranks: Sequence[int]) -> None:
        """Note that these ranks live: those that had ended were restarted."""
        if self._open is None:
            for rank in ranks:
                self._ended.pop(rank, None)
                self._died.pop(rank, None)

    def turn(self, now: float, *, is_stalled: bool) -> Hang | None:
        """Return a hang once, when everything is known; `now` is monotonic, in s."""
        if self.is_open:
            return self._follow(now)
        if self._died or is_stalled:
            self.number += 1
            self._lives.clear()
            self._open = ("rank_died" if self._died else "stalled", _now(), now)
        return None

    def close(self) -> None:
        """End its work."""
        self._work.shutdown(wait=False, cancel_futures=True)

    def _follow(self, now: float) -> Hang | None:
        if self._answer is not None:
            if not self._answer.done():
                return None
            self.last, self._answer, self._open = self._answer.result(), None, None
            self._steps_then = {rank: self._step_of(rank) for rank in self.last.missing}
            return self.last
        if self._open is not None:
            kind, at, since = self._open
            waits_s = now - since
            if waits_s > _ANSWERS_S or (waits_s > _TOGETHER_S and self._has_answers()):
                ranks = self._standing()
                step = self._table.last_common_step
                asked = Hang(self.number, at, kind, step, (), "", ranks)
                self._answer = self._work.submit(hang_of, self._places, asked)
        elif self.last is not None and self._goes_on(self.last):
            self.last = replace(self.last, over=True)
            self._until_ns = max((one.at_ns for one in (*self._died.values(), *self._ended.values())), default=0)
            self._died.clear()
            self._ended.clear()
            return self.last
        return None

    def _goes_on(self, last: Hang) -> bool:
        """Return whether the missing ranks have ended other steps since, or, without any, the job has."""
        if not self._died and all(rank in self._ended for rank in self._hosts.by_rank()):
            return True  # the long step was no hang
        if last.missing:
            return all(self._step_of(rank) != self._steps_then.get(rank, -1) for rank in last.missing)
        return self._table.last_common_step != last.step

    def _step_of(self, rank: int) -> int:
        return int(self._table.latest[rank]) if rank < len(self._table.latest) else -1

    def _has_answers(self) -> bool:
        """Return whether every rank that reporting hosts call living has answered."""
        return all(rank in self._lives or self._gone(rank) is not None for rank in self._hosts.ranks())

    def _gone(self, rank: int) -> Standing | None:
        return self._died.get(rank) or self._ended.get(rank)

    def _standing(self) -> tuple[StandingRank, ...]:
        host_of = self._hosts.by_rank()
        silent = {rank for state in self._hosts if state.is_silent and state.beat.ranks for rank in state.ranks}
        return tuple(self._standing_of(rank, host_of.get(rank), rank in silent) for rank in sorted(host_of))

    def _standing_of(self, rank: int, host: str | None, is_silent: bool) -> StandingRank:
        life = self._gone(rank) or self._lives.get(rank)
        if life is None:
            return StandingRank(rank, host, "unheard" if is_silent else "untold", self._step_of(rank) + 1)
        state: StandingKind = "lives" if life.lives else "ended" if rank in self._ended else "died"
        return StandingRank(
            rank,
            host,
            state,
            life.step if life.step >= 0 else self._step_of(rank) + 1,
            life.phase,
            life.where,
            life.after,
            life.signal,
            life.exit_status if life.exit_status >= 0 else None,
            life.known_by,
            life.error,
            life.at_ns,
        )


def hang_of(places: JobPlaces, asked: Hang) -> Hang:
    """Return the hang with its missing ranks; the answers are stored next to their dumps."""
    folder = places.hang(asked.number)
    found = verdict_of(places, asked)
    named = {rank for finding in found.findings for rank in finding.ranks}
    with suppress(OSError):  # store away: the report does not need it
        make_folder(folder.parent)
        make_folder(folder)
        write_whole(folder / "ranks.json", msgspec.json.encode(asked.ranks))
    # A hang noticed by its steps may be a death, because a process can take long to end.
    ending = ending_of(asked.ranks)
    has_died = any(one.state == "died" for one in asked.ranks)
    kind: HangKind = "ended" if ending.is_from_outside else "rank_died" if has_died else "stalled"
    missing = tuple(sorted(int(rank) for rank in named))
    return replace(asked, kind=kind, missing=missing, told=ending.in_words or _in_words(asked.ranks, named, found))


def verdict_of(places: JobPlaces, known: Hang) -> TriageResult:
    """Return the verdict on the dumps in the store and where ranks stand."""
    ranks = tuple(Rank(one.rank) for one in known.ranks)
    progress = _progress_in(places.hang(known.number), {one.rank for one in known.ranks})
    job = Job(
        name=places.job,
        source=str(places.hang(known.number)),
        format="flight_recorder",
        world_size=max((rank + 1 for rank in ranks), default=1),
        ranks=ranks,
        hosts={one.rank: one.host for one in known.ranks if one.host is not None},
        layout=None,
        device=None,
        has_device=False,
        absolute_time=True,
        steps=(),
        step_times=StepTimes((), (), (), (), ()),
        operations=0,
        warnings=(),
        progress=progress,
    )
    return standing_verdict(Trace(job, (), ()), known.ranks)


def _progress_in(folder: Path, ranks: set[int]) -> dict[int, tuple[GroupProgress, ...]]:
    """Return the readable dumps; a rank's dump is untrusted."""
    found = {}
    for rank in sorted(ranks):
        with suppress(Exception):
            if (file := folder / f"rank-{rank}.json").stat().st_size <= _MOST_DUMP:
                found[rank] = progress_of(json.loads(read_kept(file)))
    return {rank: progress for rank, progress in found.items() if progress}


def _in_words(ranks: Sequence[StandingRank], named: set[Rank], found: TriageResult) -> str:
    who = [standing_in_words(one) for one in ranks if one.rank in named][:4]
    more = f", and {len(named) - len(who)} more ranks" if len(named) > len(who) else ""
    operator = next((one.operator for one in found.findings if one.operator), None)
    waiting = sum(one.state == "lives" and one.rank not in named for one in ranks)
    wait = f"; {waiting} {'rank waits' if waiting == 1 else 'ranks wait'}{f' in {operator}' if operator else ''}"
    wait = next((f"; {known}" for one in found.findings if (known := waiting_in(one))), wait)
    if who:
        return "; ".join(who) + more + (wait if waiting else "")
    return "nobody is known to be missing" + (wait if waiting and operator else "")


def _numbers(folder: Path) -> list[int]:
    """Return 0, and the numbers of existing hangs."""
    with suppress(OSError):
        return [0, *(int(one.name) for one in folder.iterdir() if one.name.isdecimal() and len(one.name) < 10)]
    return [0]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
