"""Hangs made for the tests: programs of ranks are run until nothing moves, and what each called is written as a dump.

A program is a list of calls. A collective ends when all members have made it alike, a transfer when its other end has,
and a rank makes its next call when the last one is over. So what a dump holds follows from who stops where.
"""

import json
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kair_engine.ranks import Rank
from kair_engine.readers.flight_recorder import progress_of
from kair_engine.results.triage import TriageResult
from kair_engine.trace.model import Job, StepTimes, Trace

VERSIONS = tuple(f"2.{minor}" for minor in range(11))
_BEGIN_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class Call:
    """A collective of `group`, or a send or receive; `line` is where in train.py it is made."""

    group: str
    operation: str
    line: int
    shape: tuple[int, ...] = (1024,)
    dtype: str = "Float"
    peer: int = -1
    """Of a transfer: its other end's place in the group."""
    batch: tuple["Call", ...] = ()
    """Transfers that are made at once."""
    never_ends: bool = False
    """Whether it stays open though all are in it."""


@dataclass
class _Made:
    call: Call
    sequence: int
    time: int
    done: bool = False


@dataclass
class Hang:
    """Programs, and what is right to say of them."""

    kind: str
    groups: dict[str, tuple[str, tuple[int, ...]]]
    programs: list[list[Call]]
    culprits: tuple[int, ...]
    """Nobody where the network or the order of all is to blame."""
    operator: str
    line: int
    """Where in train.py the call is that is waited in, or was made otherwise."""
    silent: tuple[int, ...] = ()
    """Who leaves no dump."""
    aborted: bool = False
    returns_only: bool = False
    """Whether the backend says of a call that it returned, and not that it is over."""
    made: list[list[_Made]] = field(default_factory=list)

    @property
    def world(self) -> int:
        return len(self.programs)

    def run(self) -> "Hang":
        self.made = [[] for _ in self.programs]
        moved = True
        clock = 0
        while moved:
            moved = False
            for rank, program in enumerate(self.programs):
                mine = self.made[rank]
                if len(mine) < len(program) and (not mine or mine[-1].done):
                    call, clock = program[len(mine)], clock + 1_000_000
                    mine.append(_Made(call, self._next_number(rank, call), _BEGIN_NS + clock))
                    moved = True
            moved = self._finish() or moved
        return self

    def _next_number(self, rank: int, call: Call) -> int:
        kind = _is_transfer(call)
        return 1 + sum(one.call.group == call.group and _is_transfer(one.call) == kind for one in self.made[rank])

    def _finish(self) -> bool:
        found = [
            one for rank, mine in enumerate(self.made) for one in mine[-1:] if not one.done and self._ends(rank, one)
        ]
        for one in found:
            one.done = True
        return bool(found)

    def _ends(self, rank: int, one: _Made) -> bool:
        if _is_transfer(one.call):
            return all(self._meets(rank, part) for part in one.call.batch or (one.call,))
        others = [self._made_as(other, one) for other in self.groups[one.call.group][1]]
        return not one.call.never_ends and all(other is not None and _alike(other.call, one.call) for other in others)

    def _made_as(self, rank: int, like: _Made) -> _Made | None:
        key = (like.call.group, like.sequence)
        return next(
            (one for one in self.made[rank] if (one.call.group, one.sequence) == key and not _is_transfer(one.call)),
            None,
        )

    def _meets(self, rank: int, part: Call) -> bool:
        """Whether as many of its kind were made at the other end as here."""
        members = self.groups[part.group][1]
        there = members[part.peer]
        answer = "recv" if part.operation == "send" else "send"
        here = self._count(rank, part.group, part.operation, part.peer)
        return here <= self._count(there, part.group, answer, members.index(rank))

    def _count(self, rank: int, group: str, operation: str, peer: int) -> int:
        parts = [part for one in self.made[rank] for part in one.call.batch or (one.call,)]
        return sum((part.group, part.operation, part.peer) == (group, operation, peer) for part in parts)

    def dump(self, rank: int, version: str, *, shift_ns: int = 0) -> dict[str, Any]:
        """What rank's dump of that version holds."""
        minor = int(version.split(".")[1])
        groups = {name: group for name, group in self.groups.items() if rank in group[1]}
        config = {
            name: {"name": name, "desc": words, "ranks": str(list(ranks))} for name, (words, ranks) in groups.items()
        }
        dump: dict[str, Any] = {"version": version}
        if minor >= 5:
            dump["comm_lib_version" if minor >= 10 else "nccl_version"] = "2.27.5"
        dump["pg_config"] = config
        if minor >= 3:
            dump["pg_status"] = {name: self._status(rank, name) for name in groups}
        dump["entries"] = [
            {**entry, "record_id": at, "time_created_ns": entry["time_created_ns"] + shift_ns}
            for at, entry in enumerate(self._entries(rank, minor))
        ]
        return dump

    def _status(self, rank: int, group: str) -> dict[str, int]:
        works = [one for one in self.made[rank] if one.call.group == group]
        last = works[-1].sequence if works else -1
        done = [one.sequence for one in works if one.done or self.aborted]
        completed = -1 if self.returns_only or not done else done[-1]
        return {
            "last_enqueued_collective": last,
            "last_started_collective": -1 if self.returns_only else last,
            "last_completed_collective": completed,
        }

    def _entries(self, rank: int, minor: int) -> Iterator[dict[str, Any]]:
        numbers = dict.fromkeys(self.groups, 0)
        for one in self.made[rank]:
            if not _is_transfer(one.call):
                numbers[one.call.group] = one.sequence
            for part in one.call.batch:
                yield self._entry(rank, one, part, numbers, minor, in_batch=True)
            yield self._entry(rank, one, one.call, numbers, minor, in_batch=False)

    def _entry(
        self, rank: int, one: _Made, call: Call, numbers: dict[str, int], minor: int, *, in_batch: bool
    ) -> dict[str, Any]:
        transfer = _is_transfer(call)
        place = self.groups[call.group][1].index(rank)
        arrow = {"send": f" {place}->{call.peer}", "recv": f" {place}<-{call.peer}"}.get(call.operation, "")
        over = (one.done or self.aborted) and not in_batch and not self.returns_only
        shapes = [] if call.batch or call.operation == "coalesced" else [list(call.shape)]
        entry: dict[str, Any] = {
            "record_id": 0,
            "pg_id": list(self.groups).index(call.group),
            "process_group": (call.group, self.groups[call.group][0]),
            "collective_seq_id": numbers[call.group],
            "p2p_seq_id": one.sequence if transfer else 0,
            "op_id": one.sequence,
            "profiling_name": f"{'nccl2' if self.returns_only else 'nccl'}:{call.operation}{arrow}",
            "time_created_ns": one.time,
            "input_sizes": shapes,
            "output_sizes": shapes,
            "state": "completed" if over else "scheduled" if self.returns_only or in_batch else "started",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": one.time + 900 if over else None,
            "retired": self.returns_only or over,
            "frames": [
                {"name": "all_reduce", "filename": "/opt/python/site-packages/torch/distributed/c10d.py", "line": 2696},
                {"name": "step", "filename": "/workspace/train.py", "line": call.line},
                {"name": "<module>", "filename": "/workspace/train.py", "line": 400},
            ],
        }
        if minor >= 1:
            entry |= {"input_dtypes": [call.dtype] * len(shapes), "output_dtypes": [call.dtype] * len(shapes)}
        if minor >= 2:
            entry |= {"is_p2p": transfer, "timeout_ms": 600_000}
        if minor >= 8:
            entry |= {"thread_id": "140231", "thread_name": "pt_main_thread"}
        return entry

    def write(self, folder: Path, version: str, *, ranks: Sequence[int] | None = None) -> Path:
        """The dumps of all ranks, or of these, as the watchdog writes them."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.world) if ranks is None else ranks:
            if rank not in self.silent:
                write_dump(folder, rank, self.dump(rank, version))
        return folder


def write_dump(folder: Path, rank: int, dump: dict[str, Any], *, as_json: bool = False) -> None:
    content = json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(content)


def _is_transfer(call: Call) -> bool:
    return bool(call.batch) or call.operation in ("send", "recv")


def _alike(one: Call, other: Call) -> bool:
    return (one.operation, one.shape, one.dtype) == (other.operation, other.shape, other.dtype)


def _data_parallel(world: int, steps: int) -> list[list[Call]]:
    """Three collectives a step, all in the default group."""
    step = [
        Call("0", "_all_gather_base", 110, (4096,)),
        Call("0", "all_reduce", 120, (2048, 64)),
        Call("0", "broadcast", 130, (16,)),
    ]
    return [step * steps for _ in range(world)]


def _of_all(world: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {"0": ("default_pg", tuple(range(world)))}


def _stopped(kind: str, chance: random.Random, culprits: int) -> Hang:
    world, steps = chance.choice((4, 6, 8)), chance.randrange(2, 9)
    programs = _data_parallel(world, steps)
    first = chance.randrange(world // 2) * 2 if culprits > 1 else chance.randrange(world)
    who = tuple(range(first, first + culprits))
    at = chance.randrange(1, 3 * steps)
    operator, line = programs[0][at].operation, programs[0][at].line
    for rank in who:
        programs[rank] = programs[rank][:at]
    return Hang(kind, _of_all(world), programs, who, operator, line)


def behind(chance: random.Random) -> Hang:
    return _stopped("one rank behind", chance, 1)


def two_behind(chance: random.Random) -> Hang:
    return _stopped("two ranks of a host behind", chance, 2)


def _otherwise(kind: str, chance: random.Random, change: Callable[[Call], Call]) -> Hang:
    world, steps = chance.choice((4, 6, 8)), chance.randrange(2, 9)
    programs = _data_parallel(world, steps)
    rank, at = chance.randrange(world), chance.randrange(3 * steps)
    call = programs[rank][at]
    programs[rank] = [*programs[rank][:at], change(call), *programs[rank][at + 1 :]]
    return Hang(kind, _of_all(world), programs, (rank,), call.operation, change(call).line)


def other_size(chance: random.Random) -> Hang:
    return _otherwise("another size", chance, lambda call: replace(call, line=call.line + 5, shape=(1025,)))


def other_type(chance: random.Random) -> Hang:
    return _otherwise(
        "another data type",
        chance,
        lambda call: Call(call.group, call.operation, call.line + 5, call.shape, "BFloat16"),
    )


def skipped(chance: random.Random) -> Hang:
    """A rank that leaves one call out, and makes the next one under its number."""
    world, steps = chance.choice((4, 6, 8)), chance.randrange(2, 9)
    programs = _data_parallel(world, steps)
    rank, at = chance.randrange(world), chance.randrange(3 * steps - 1)
    operator, line = programs[rank][at].operation, programs[rank][at + 1].line
    programs[rank] = [*programs[rank][:at], *programs[rank][at + 1 :]]
    return Hang("a call left out", _of_all(world), programs, (rank,), operator, line)


def pipeline(chance: random.Random) -> Hang:
    """Forward passes down a pipeline and backward passes up; a stage stops in the middle."""
    stages, batches = chance.choice((4, 6)), chance.randrange(4, 8)
    stage = chance.randrange(stages)
    groups = {**_of_all(stages), "1": ("pp", tuple(range(stages)))}
    programs = []
    for rank in range(stages):
        program = [Call("0", "all_reduce", 100, (1,))]
        for _ in range(batches):
            program += [Call("1", "recv", 210, peer=rank - 1)] if rank else []
            program += [Call("1", "send", 220, peer=rank + 1)] if rank < stages - 1 else []
        for _ in range(batches):
            program += [Call("1", "recv", 230, peer=rank + 1)] if rank < stages - 1 else []
            program += [Call("1", "send", 240, peer=rank - 1)] if rank else []
        programs.append(program)
    length = len(programs[stage])
    # Not within what needs no other: the last forward passes of the first stage are sent before it stops.
    programs[stage] = programs[stage][: chance.randrange(length // 2, length - 2)]
    return Hang("a stage of a pipeline stops", groups, programs, (stage,), "", 0)


def batched(chance: random.Random) -> Hang:
    """Two stages exchange in batches, which are over; then a rank is missing from its data-parallel collective."""
    width, batches = chance.choice((2, 3, 4)), chance.randrange(2, 6)
    stages = [tuple(range(width)), tuple(range(width, 2 * width))]
    groups = {**_of_all(2 * width), "1": ("dp", stages[0]), "2": ("dp", stages[1])}
    groups |= {str(10 + at): ("pp", (at, at + width)) for at in range(width)}
    rank, steps = chance.randrange(2 * width), chance.randrange(2, 5)
    programs = []
    for one in range(2 * width):
        pair, place = str(10 + one % width), int(one >= width)
        parts = (Call(pair, "send", 310, peer=1 - place), Call(pair, "recv", 311, peer=1 - place))
        reduce = Call("1" if one < width else "2", "_reduce_scatter_base", 320, (4096,))
        programs.append([Call(pair, "coalesced", 312, batch=parts)] * batches + [reduce] * steps)
    programs[rank] = programs[rank][:-1]
    return Hang("finished batches, a rank behind", groups, programs, (rank,), "_reduce_scatter_base", 320)


def nested(chance: random.Random) -> Hang:
    """A rank stops in its tensor-parallel group; its peers are missing from data-parallel groups for that."""
    tensor, data = 2, chance.choice((2, 3, 4))
    groups = _of_all(tensor * data)
    groups |= {str(1 + at): ("tp", (2 * at, 2 * at + 1)) for at in range(data)}
    groups |= {str(20 + at): ("dp", tuple(range(at, 2 * data, 2))) for at in range(tensor)}
    rank, steps = chance.randrange(tensor * data), chance.randrange(2, 5)
    programs = [
        [Call(str(1 + one // 2), "all_reduce", 410, (512,)), Call(str(20 + one % 2), "all_reduce", 420, (4096,))]
        * steps
        for one in range(tensor * data)
    ]
    programs[rank] = programs[rank][: 2 * chance.randrange(1, steps)]
    return Hang("a group held up by another", groups, programs, (rank,), "all_reduce", 410)


def without_dump(chance: random.Random) -> Hang:
    found = _stopped("the culprit leaves no dump", chance, 1)
    found.silent = found.culprits
    return found


def aborted(chance: random.Random) -> Hang:
    """The watchdog aborted what was open, which counts as completed from then on."""
    found = _stopped("completed by an abort", chance, 1)
    found.aborted = True
    return found


def returned(chance: random.Random) -> Hang:
    found = _stopped("retired, never completed", chance, 1)
    found.returns_only = True
    return found


def network(chance: random.Random) -> Hang:
    world, steps = chance.choice((4, 6, 8)), chance.randrange(2, 9)
    programs = _data_parallel(world, steps)
    last = Call("0", "all_reduce", 140, (1 << 20,), never_ends=True)
    return Hang("the network", _of_all(world), [[*one, last] for one in programs], (), "all_reduce", 140)


def deadlock(chance: random.Random) -> Hang:
    """Two neighbours each send first, and wait for that before they receive."""
    world = chance.choice((4, 6, 8))
    first, steps = chance.randrange(world // 2) * 2, chance.randrange(2, 6)
    programs = [[Call("0", "all_reduce", 100, (8,))] * steps for _ in range(world)]
    for rank, peer in ((first, first + 1), (first + 1, first)):
        programs[rank] += [Call("0", "send", 510, peer=peer), Call("0", "recv", 511, peer=peer)]
    return Hang("two ranks send first", _of_all(world), programs, (), "send", 510)


KINDS = (
    behind,
    two_behind,
    other_size,
    other_type,
    skipped,
    pipeline,
    batched,
    nested,
    without_dump,
    aborted,
    returned,
    network,
    deadlock,
)
PER_KIND = 4


def all_hangs() -> list[Hang]:
    """PER_KIND of each kind, drawn by seed."""
    return [kind(random.Random(f"{kind.__name__} {seed}")).run() for kind in KINDS for seed in range(PER_KIND)]


def job_of(dumps: Mapping[int, Mapping[str, Any]], world: int) -> Trace:
    """The job of some ranks' dumps, without files."""
    ranks = tuple(Rank(rank) for rank in sorted(dumps))
    nothing = StepTimes((), (), (), (), ())
    job = Job(
        name="hung",
        source="",
        format="flight_recorder",
        world_size=world,
        ranks=ranks,
        hosts={},
        layout=None,
        device=None,
        has_device=False,
        absolute_time=True,
        steps=(),
        step_times=nothing,
        operations=0,
        warnings=(),
        progress={rank: progress_of(dump) for rank, dump in sorted(dumps.items())},
    )
    return Trace(job, (), ())


Dumps = dict[int, dict[str, Any]]
_HOUR_NS = 3_600 * 10**9


def dumps_of(one: Hang, version: str = "2.10") -> Dumps:
    return {rank: one.dump(rank, version) for rank in range(one.world) if rank not in one.silent}


def named(result: TriageResult) -> set[int]:
    return {rank for finding in result.findings for rank in finding.ranks}


def judged(one: Hang, result: TriageResult) -> str:
    """`whole`: who, which call, where; `who`: those alone; `some` of them; `open`; or `innocent`: one that is."""
    who, first = named(result), next(iter(result.findings), None)
    if not who <= {*one.culprits}:
        return "innocent"
    if who != {*one.culprits} or first is None or (result.verdict == "straggler") != bool(one.culprits):
        return "some" if who else "open"
    where = " ".join(fact.about or "" for finding in result.findings for fact in finding.evidence)
    is_where = not one.line or f"train.py:{one.line} " in where
    return "whole" if is_where and one.operator in ("", first.operator) else "who"


def without(dumps: Dumps, *ranks: int) -> Dumps:
    return {rank: dump for rank, dump in dumps.items() if rank not in ranks}


def damaged(one: Hang, version: str, others: Sequence[Hang], chance: random.Random) -> dict[str, Dumps]:
    """Its dumps without some of them, or with some of another run."""
    dumps = dumps_of(one, version)
    innocent = chance.choice([rank for rank in dumps if rank not in one.culprits])
    culprit = chance.choice([rank for rank in dumps if rank in one.culprits] or [innocent])
    two, most = chance.sample(sorted(dumps), 2), chance.sample(sorted(dumps), len(dumps) - 1)
    other = chance.choice([one for one in others if one.world > max(innocent, culprit)])
    older = {rank: other.dump(rank, version, shift_ns=-_HOUR_NS) for rank in (innocent, culprit)}
    return {
        "an innocent's gone": without(dumps, innocent),
        "a culprit's gone": without(dumps, culprit),
        "two gone": without(dumps, *two),
        "all but one gone": without(dumps, *most),
        "an innocent's of an earlier run": {**dumps, innocent: older[innocent]},
        "a culprit's of an earlier run": {**dumps, culprit: older[culprit]},
        "an innocent's without entries": {**dumps, innocent: {**dumps[innocent], "entries": []}},
    }
