"""Record real training jobs drawn by seed: traces, and beside them what was measured.

python benchmarks/real/record.py --seeds 0:300 --out DIR [--minutes M]

Every take counts: none is recorded again, left out or chosen for what is in it. A take is dropped only if a rank
died or the time limit passed; its folder then holds dropped.json with the reason, and the next seed is recorded.
Seeds already there are skipped, so that an interrupted recording can be taken up again. Seeds below 100 are for
tuning, the others for reporting; they are recorded in turn, one of the former and two of the latter.

Needs Linux, root (network namespaces, CPU groups of cgroup v1, priorities) and torch; two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

# The ranks inherit these: the first silences two lines from each of them, the others keep to one thread.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
from drawing import Take, draw
from job import Parent, run_rank
from outside import Outside, end, fork

TIME_LIMIT_S = 120.0
TUNING_SEEDS = 100


class DroppedError(Exception):
    """A take that cannot be kept, and why."""


def main() -> int:
    """Record the seeds of the command line, in turn; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, help="FIRST:STOP, or seeds with commas between")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the takes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no take after so many")
    options = parser.parse_args()
    # A polite request to end is obeyed after everything has been cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    until = time.monotonic() + 60 * options.minutes
    for seed in in_turn(parse_seeds(options.seeds)):
        folder = options.out / f"seed{seed:04d}"
        if time.monotonic() > until:
            break
        if not folder.exists():
            begin = time.monotonic()
            outcome = record(draw(seed), folder)
            print(f"{folder.name} {time.monotonic() - begin:5.1f} s  {outcome}", flush=True)
    return 0


def parse_seeds(text: str) -> Iterable[int]:
    first, colon, stop = text.partition(":")
    return range(int(first), int(stop)) if colon else [int(seed) for seed in text.split(",")]


def in_turn(seeds: Iterable[int]) -> Iterator[int]:
    """One seed for tuning, two for reporting, and so on, so that any beginning has a third of the former."""
    seeds = list(seeds)
    tuning = [seed for seed in seeds if seed < TUNING_SEEDS]
    reporting = [seed for seed in seeds if seed >= TUNING_SEEDS]
    rows = zip_longest(tuning, reporting[::2], reporting[1::2])
    return (seed for seed in chain.from_iterable(rows) if seed is not None)


def record(take: Take, folder: Path) -> str:
    """Record the take into the new `folder`, which appears when it is complete; one line about it."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "traces").mkdir()
        summary = f"{take.parallel} {take.model} {take.ranks}r {take.steps}s {take.load} " + (
            " ".join(f"{fault.kind}@{fault.ranks} {fault.severity}" for fault in take.faults) or "healthy"
        )
        begin = time.time()
        try:
            measured = run(take, scratch)
        except DroppedError as reason:
            measured = None
            dropped = {"reason": str(reason), "take": asdict(take)}
            summary += f"  DROPPED: {str(reason).strip().splitlines()[-1]}"
        kept = scratch / "kept"
        kept.mkdir()
        if measured is None:
            (kept / "dropped.json").write_text(json.dumps(dropped, indent=1), encoding="utf-8")
        else:
            document = {"take": asdict(take), "torch": torch.__version__, "began": begin} | measured
            (kept / "take.json").write_text(json.dumps(document), encoding="utf-8")
            (scratch / "traces").rename(kept / "traces")
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(kept, partial)
        partial.rename(folder)
    return summary


def run(take: Take, scratch: Path) -> dict[str, Any]:
    """Run the take's job; what was measured.

    Raises:
        DroppedError: a rank died, or the time limit passed.
    """
    with ExitStack() as stack:
        outside = Outside(take, scratch, stack)
        stats = outside.prepare_groups()
        ranks = stack.enter_context(Ranks(take, scratch, outside))
        references = ranks.hear_all("reference")
        with ExitStack() as spell:
            outside.stack = spell
            outside.begin_load()
            for index, fault in enumerate(take.faults):
                if fault.onset == 0:
                    outside.begin_fault(index, references)
            ranks.tell_all([{"cpu_stat": stat} for stat in stats])
            ranks.hear_all("recorded", lambda index: outside.begin_fault(index, references))
        ranks.wait_for_files()
        stops = read_stops(take, scratch)
        measured = [
            json.loads((scratch / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(take.ranks)
        ]
    return {"ranks": measured, "stops": stops, "outside": outside.measures}


class Ranks:
    """The take's ranks, as processes to talk with; none outlives the context."""

    def __init__(self, take: Take, scratch: Path, outside: Outside) -> None:
        self.take, self.scratch, self.outside = take, scratch, outside
        self.inboxes: list[int] = []
        self.outboxes: list[int] = []
        self.unread = [b""] * take.ranks
        self.said: dict[str, dict[int, Any]] = {}
        self.deadline = time.monotonic() + TIME_LIMIT_S

    def __enter__(self) -> Ranks:
        for rank in range(self.take.ranks):
            from_rank, to_parent = os.pipe()
            from_parent, to_rank = os.pipe()
            parent = Parent(from_parent, to_parent)
            arguments = (self.take, rank, self.scratch, self.outside.network, parent)
            self.outside.pids.append(fork(lambda arguments=arguments: run_rank(*arguments), self.error_of(rank)))  # type: ignore[misc]  # a lambda with a default
            os.close(to_parent)
            os.close(from_parent)
            self.inboxes.append(from_rank)
            self.outboxes.append(to_rank)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.outside.pids:
            end(pid)
        for descriptor in (*self.inboxes, *self.outboxes):
            os.close(descriptor)

    def error_of(self, rank: int) -> Path:
        return self.scratch / f"rank{rank}.error"

    def tell_all(self, messages: list[dict[str, Any]]) -> None:
        """Send each rank its message."""
        for outbox, message in zip(self.outboxes, messages, strict=True):
            os.write(outbox, (json.dumps(message) + "\n").encode())

    def hear_all(self, topic: str, on_onset: Any = None) -> list[Any]:  # noqa: ANN401 -- a callback or nothing
        """Wait until every rank has told of `topic`; what they said. Onsets meanwhile are passed on."""
        said = self.said.setdefault(topic, {})
        with selectors.DefaultSelector() as selector:
            for rank, inbox in enumerate(self.inboxes):
                selector.register(inbox, selectors.EVENT_READ, rank)
            while len(said) < self.take.ranks:
                ready = selector.select(max(0.0, self.deadline - time.monotonic()))
                if not ready:
                    raise DroppedError(f"time limit of {TIME_LIMIT_S:.0f} s passed before {topic}")
                for key, _ in ready:
                    self.take_in(key.data, on_onset)
        return [said[rank] for rank in range(self.take.ranks)]

    def take_in(self, rank: int, on_onset: Any) -> None:  # noqa: ANN401 -- as torch calls it
        """Keep what has come from the rank, which may be ahead of what is waited for."""
        for message in self.messages(rank):
            for topic, value in message.items():
                if topic == "onset":
                    on_onset(value)
                else:
                    self.said.setdefault(topic, {})[rank] = value

    def messages(self, rank: int) -> list[dict[str, Any]]:
        """What has come from the rank."""
        came = os.read(self.inboxes[rank], 65536)
        if not came:
            raise DroppedError(self.death_of(rank))
        *lines, self.unread[rank] = (self.unread[rank] + came).split(b"\n")
        return [json.loads(line) for line in lines]

    def death_of(self, rank: int) -> str:
        """Why the rank ended early, as far as it said; another's failure may have been the first."""
        time.sleep(0.5)
        errors = [self.error_of(rank) for rank in range(self.take.ranks)]
        texts = [path.read_text(encoding="utf-8") for path in errors if path.exists()]
        return f"rank {rank} died\n" + "\n".join(texts)

    def wait_for_files(self) -> None:
        """Wait until every rank has written its trace and its measurements, and let them go."""
        self.hear_all("written")


def read_stops(take: Take, scratch: Path) -> list[dict[str, Any]]:
    """The stops of each fault that stops ranks: its ranks, and begins and ends in ns since the epoch."""
    stops = []
    for index, fault in enumerate(take.faults):
        log = scratch / f"stops{index}.txt"
        if log.exists():
            lines = log.read_text(encoding="ascii").splitlines()
            spells = [[int(moment) for moment in line.split()] for line in lines]
            stops.append({"fault": index, "ranks": list(fault.ranks), "spells": spells})
    return stops


if __name__ == "__main__":
    sys.exit(main())
