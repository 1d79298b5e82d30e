"""What capture leaves on a host, for tests: rings with steps in them, windows, delivered fragments."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from support.kineto_builder import trace, training_steps, write

from kair_capture.agent.agent import Agent, agent_settings
from kair_capture.agent.ring_reader import Trainer, TrainerRings, trainers_in
from kair_capture.agent.step_rows import ROW, Rows
from kair_capture.agent.windows import HostOfWindow, convert, window_files
from kair_capture.ring import Kind, NameWriter, RingProducer

MS = 1_000_000


class OneRank:
    """A rank of this process: two rings, and what the agent makes of them."""

    def __init__(self, folder: Path, rank: int = 3, capacity: int = 256) -> None:
        self.folder, self.trainer = folder, Trainer(rank, os.getpid())
        stem = f"rank-{rank}-{os.getpid()}"
        self.names = NameWriter(folder / f"{stem}.names")
        self.rings = [RingProducer(folder / f"{stem}-{number}.ring", capacity) for number in range(2)]

    def reader(self) -> TrainerRings:
        """What a (new) agent sees."""
        return rings_of(self.folder, self.trainer, [ring.path.name for ring in self.rings])

    def step(self, number: int, begin_ms: int, length_ms: int = 10, wait_ms: int = 4) -> None:
        """A step whose second thread waited; all records of it."""
        main, other = self.rings
        begin, end = begin_ms * MS, (begin_ms + length_ms) * MS
        main.emit(Kind.SCOPE, begin, 3 * MS, number, self.names.number("forward"))
        other.emit(Kind.COLLECTIVE, end - wait_ms * MS, wait_ms * MS, number, self.names.number("all_reduce"))
        main.emit(Kind.STEP, begin, end - begin, number)
        main.emit(Kind.CLOCK, end, end + 5000 * MS, number)
        main.commit(number)


def rings_of(folder: Path, trainer: Trainer | None = None, names: Iterable[str] = ()) -> TrainerRings:
    """All rings of a process, else those of these names; of a folder's first process where none is said."""
    there = trainers_in(sorted(one.name for one in folder.iterdir()))
    trainer = trainer or next(iter(there))
    found = TrainerRings(folder, trainer)
    for name in names or there[trainer]:
        found.add(name)
    return found


@contextmanager
def agent_of(folder: Path, **variables: str) -> Iterator[Agent]:
    """An agent of a job in this folder, on `node-1`, without a heartbeat or other processes of its own."""
    names = {"KAIR_RUN_DIR": "run", "KAIR_STORE": "store", "KAIR_SPOOL_DIR": "spool"}
    places = {name: str(folder / place) for name, place in names.items()}
    agent = Agent(agent_settings({"KAIR_JOB": "job", "KAIR_HOST": "node-1", **places, **variables}))
    agent._born = float("inf")
    yield agent
    agent.journal.close()
    agent._midwife.shutdown()
    os.close(agent._lock)


def rows_for(rank: int, steps: range, *, step_us: int = 1000, self_us: int = 800, begin_us: int = 10**15) -> Rows:
    """Rows of one rank, a step behind the other."""
    rows = np.zeros(len(steps), ROW)
    rows["rank"], rows["step"] = rank, list(steps)
    rows["begin_us"] = [begin_us + step * step_us for step in steps]
    rows["step_us"], rows["self_us"] = step_us, self_us
    return rows


def window_of(folder: Path, ranks: range, *, first: int = 5, steps: int = 4, later_s: float = 0.0) -> None:
    """What ranks leave of a sampled window."""
    for rank in ranks:
        events = training_steps(steps, first=first)
        for one in events:
            one["ts"] += 1.7e15 + 1e6 * later_s
        path = folder / f"rank-{rank}-{first}-{first + steps - 1}.json"
        write(path, trace(events, rank=rank, world=len(ranks)))


def fragment_of(folder: Path, ranks: range, *, host: str = "node-1", first: int = 5, later_s: float = 0.0) -> Path:
    """A fragment that an agent would make of such a window."""
    window_of(folder, ranks, first=first, later_s=later_s)
    made, refused = convert(window_files(folder), folder, HostOfWindow(host, len(ranks), None, 0))
    assert len(made) == 1
    assert not refused
    for path in folder.glob("*.json"):
        path.unlink()
    return made[0].path
