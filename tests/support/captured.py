"""What capture leaves on a host, for tests: rings with steps in them, windows, delivered fragments."""

from pathlib import Path

import numpy as np
from support.kineto_builder import trace, training_steps, write

from kair_capture.agent.ring_reader import Trainer, TrainerRings
from kair_capture.agent.step_rows import ROW, Rows
from kair_capture.agent.windows import HostOfWindow, convert, window_files
from kair_capture.ring import Kind, NameWriter, RingProducer

MS = 1_000_000


class OneRank:
    """A rank of this process: two rings, and what the agent makes of them."""

    def __init__(self, folder: Path, rank: int = 3, capacity: int = 256) -> None:
        import os

        self.folder, self.trainer = folder, Trainer(rank, os.getpid())
        stem = f"rank-{rank}-{os.getpid()}"
        self.names = NameWriter(folder / f"{stem}.names")
        self.rings = [RingProducer(folder / f"{stem}-{number}.ring", capacity) for number in range(2)]

    def reader(self) -> TrainerRings:
        """What a (new) agent sees."""
        found = TrainerRings(self.folder, self.trainer)
        for ring in self.rings:
            found.add(ring.path.name)
        return found

    def step(self, number: int, begin_ms: int, length_ms: int = 10, wait_ms: int = 4) -> None:
        """A step whose second thread waited; all records of it."""
        main, other = self.rings
        begin, end = begin_ms * MS, (begin_ms + length_ms) * MS
        main.emit(Kind.SCOPE, begin, 3 * MS, number, self.names.number("forward"))
        other.emit(Kind.COLLECTIVE, end - wait_ms * MS, wait_ms * MS, number, self.names.number("all_reduce"))
        main.emit(Kind.STEP, begin, end - begin, number)
        main.emit(Kind.CLOCK, end, end + 5000 * MS, number)
        main.commit(number)


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
