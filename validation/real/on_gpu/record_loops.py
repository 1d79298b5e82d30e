"""Record training loops drawn by seed on one GPU, and how deep its launch queue is.

python validation/real/on_gpu/record_loops.py --out DIR --seconds 420 --seeds 0:200 [--dry-run]

Each seed's loop (loop_drawing.py) is recorded four times healthy and once with each of its faults; what the loop
measured by events of the device is beside each trace. Every recording counts: none is made again, left out or chosen
for what is in it. A recording or a seed that fails is written to truth.jsonl as such, and the next one is begun.

DIR receives `queue.json` (the probes of the launch queue), `truth.jsonl` (one line per recording), `log.txt` and
archives `loops_N.tar` with traces, all of which are whole after each recording. One process keeps them; another one has
the GPU, and is replaced where it ends or says nothing for too long.

`--dry-run` needs no GPU: the loops run on the CPU with as few examples as there can be, and their traces are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from on_gpu.companion import accompany
from on_gpu.loop_parts import heard, next_line, part, seeds_of
from on_gpu.packing import FullError, Packer, packed

SILENT_S: Final = 75.0
"""Without a word from the process that has the GPU it is taken to hang."""
SHORTEST_TURN_S: Final = 12.0
"""With less time left no seed is begun."""
LIMITS_OF_QUEUE: Final = ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {"CUDA_SCALE_LAUNCH_QUEUES": "4x"})
"""Surroundings that may change the queue, each tried in a process of its own."""
EACH_LIMIT_S: Final = 14.0
GIVEN_TO_LIMITS: Final = 0.08
"""Of the time, after the loops."""


def main() -> int:
    """Record the seeds of the command line; 0 where anything was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder to fill")
    parser.add_argument("--seconds", type=float, default=420.0, help="in which all is to be over")
    parser.add_argument("--seeds", default="0:200", help="FIRST:STOP")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU")
    parser.add_argument("--part", choices=("worker", "companion", "probes"), help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--no-probes", action="store_true", help="without those of the launch queue")
    options = parser.parse_args()
    if options.part:
        return begin_part(options)
    if options.out is None:
        parser.error("--out is needed")
    return Keeper(options).run()


def begin_part(options: argparse.Namespace) -> int:
    """Do one part of the work; the keeper itself loads none of what the parts need."""
    if options.part == "companion":
        return accompany(options)
    from on_gpu.loop_worker import probe_shortly, work

    parts: dict[str, Callable[[argparse.Namespace], int]] = {"worker": work, "probes": probe_shortly}
    return parts[options.part](options)


class Keeper:
    """The process that keeps what is recorded, and has one after another do it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.until = time.monotonic() + options.seconds
        self.packer = Packer(self.out)
        self.log = (self.out / "log.txt").open("a", encoding="utf-8")
        self.truth = (self.out / "truth.jsonl").open("a", encoding="utf-8")
        self.probes: dict[str, Any] = {}
        self.counts = {"recorded": 0, "failed": 0}
        self.packing = threading.Lock()
        self.full = False

    def run(self) -> int:
        seeds, stop = seeds_of(self.options.seeds), self.until
        if not self.options.dry_run:
            stop -= GIVEN_TO_LIMITS * self.options.seconds
        first, probed = seeds.start, self.options.no_probes or self.options.dry_run
        with tempfile.TemporaryDirectory() as name:
            while first < seeds.stop and stop - time.monotonic() > SHORTEST_TURN_S and not self.full:
                reached = self._one_worker(first, seeds.stop, stop, Path(name), with_probes=not probed)
                first, probed = reached + 1, True
        if not self.options.dry_run and not self.options.no_probes:
            self._probe_limits()
        self.say(f"over: {self.counts} in {self.options.seconds - (self.until - time.monotonic()):.0f} s")
        return 0 if self.counts["recorded"] else 1

    def say(self, text: str) -> None:
        line = f"{self.options.seconds - (self.until - time.monotonic()):6.1f} s  {text}"
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def _one_worker(self, first: int, stop: int, until: float, scratch: Path, *, with_probes: bool) -> int:
        """Have a process record from `first` on; the last seed that it began."""
        words = [f"--seeds={first}:{stop}", f"--seconds={until - time.monotonic():.1f}", f"--scratch={scratch}"]
        words += ["--dry-run"] if self.options.dry_run else []
        words += [] if with_probes else ["--no-probes"]
        reached = first
        with (
            subprocess.Popen(part("worker", *words), stdout=subprocess.PIPE, text=True) as worker,
            ThreadPoolExecutor(3) as pool,
        ):
            said = heard(worker.stdout)
            while True:
                # Time enough for what a worker does after its last recording.
                line = next_line(said, min(SILENT_S, max(1.0, self.until - time.monotonic())))
                if line is None or line.get("event") == "end":
                    break
                reached = line.get("seed", reached)
                self._take(line, pool)
            if line is None:
                self.say(f"the process with the GPU ended or hung at seed {reached}")
            with suppress(subprocess.TimeoutExpired):
                worker.wait(3 if line is not None else 0.5)
            if worker.poll() is None:
                worker.kill()
        return reached

    def _take(self, line: dict[str, Any], pool: ThreadPoolExecutor) -> None:
        kind = line["event"]
        if kind == "say":
            self.say(line["text"])
        elif kind == "probes":
            self.probes[line["section"]] = line["said"]
            self._write_probes()
        elif kind in ("recorded", "kept"):
            text = Path(line["trace"]).read_bytes()
            Path(line["trace"]).unlink()
            pool.submit(self._pack, line, text).add_done_callback(self._packed)
        elif kind == "failed":
            self._write_truth(line)

    def _pack(self, line: dict[str, Any], text: bytes) -> None:
        data = packed(text)
        with self.packing:
            if self.full:
                return
            name = line["name"]
            told = {key: value for key, value in line.items() if key not in ("event", "trace")}
            members = {f"{name}.pt.trace.json.gz": data}
            if line["event"] == "recorded":
                members[f"{name}.json"] = json.dumps(told).encode()
            line["archive"] = self.packer.add(members)
            line["bytes"] = len(data)
            self._write_truth(line)

    def _packed(self, done: Future[None]) -> None:
        error = done.exception()
        if isinstance(error, FullError):
            self.full = True
        if error is not None:
            self.say(f"not kept: {error}")

    def _write_truth(self, line: dict[str, Any]) -> None:
        if line["event"] in self.counts:
            self.counts[line["event"]] += 1
        self.truth.write(json.dumps({key: value for key, value in line.items() if key != "trace"}) + "\n")
        self.truth.flush()

    def _write_probes(self) -> None:
        text = json.dumps(self.probes, indent=1)
        partial = self.out / ".queue.json"
        partial.write_text(text, encoding="utf-8")
        partial.rename(self.out / "queue.json")

    def _probe_limits(self) -> None:
        """The queue's depth where the surroundings say another one, in what time is left."""
        for surroundings in LIMITS_OF_QUEUE:
            left = self.until - time.monotonic()
            if left < EACH_LIMIT_S / 2:
                return
            name = " ".join(f"{key}={value}" for key, value in surroundings.items())
            try:
                found = subprocess.run(
                    part("probes", "--seconds=5"),
                    env=os.environ | surroundings,
                    capture_output=True,
                    text=True,
                    timeout=min(left, 2 * EACH_LIMIT_S),
                    check=False,
                )
                self.probes[name] = json.loads(found.stdout.splitlines()[-1])
            except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
                self.probes[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
            self._write_probes()


if __name__ == "__main__":
    sys.exit(main())
