"""What a record of the ring costs, and whether a reader beside the writer ever sees one torn or out of order.

python benchmarks/capture/ring.py                    # ns per record, in turns with the parts it is made of
python benchmarks/capture/ring.py --records 1e8      # a reader in another process checks every record
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kair_capture.agent.ring_reader import RingReader
from kair_capture.ring import Kind, RingProducer

FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
PER_STEP = 1000
CAPACITY = 1 << 15
MIX = 0x9E37_79B9_7F4A_7C15


def main() -> None:
    """Prints figures; exit status 1 where a record was torn or reordered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=float, default=0, help="check so many under a concurrent reader")
    parser.add_argument("--write", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(Path(options.write), int(options.records))
    elif options.records:
        sys.exit(check(int(options.records)))
    else:
        measure()


def measure(rounds: int = 21, calls: int = 20_000) -> None:
    """Medians over rounds, in each of which every way has its turn."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        ring = RingProducer(Path(folder) / "a.ring", CAPACITY)
        reader = RingReader(ring.path)
        emit, clock = ring.emit, time.monotonic_ns

        def records() -> None:
            for _ in range(calls):
                emit(Kind.SCOPE, 1, 2, 3, 4, 5, 6)

        def scopes() -> None:
            for _ in range(calls):
                begin = clock()
                emit(Kind.SCOPE, begin, clock() - begin, 3, 4, 5, 6)

        def clocks() -> None:
            for _ in range(calls):
                clock()

        def nothing() -> None:
            for _ in range(calls):
                pass

        ways: dict[str, Callable[[], None]] = {
            "empty loop": nothing, "clock": clocks, "record": records, "scope (two clocks, one record)": scopes,
        }  # fmt: skip
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                # The thread's own time: on a shared machine others' turns are no cost of the ring's.
                begin = time.thread_time_ns()
                way()
                taken[name].append((time.thread_time_ns() - begin) / calls)
                reader.read()
    for name, values in taken.items():
        low, middle, high = np.percentile(values, (10, 50, 90))
        print(f"{name:32} {middle:6.0f} ns   10 to 90 %: {low:.0f} to {high:.0f}")
    without = statistics.median(taken["record"]) - statistics.median(taken["empty loop"])
    print(f"{'record without the loop':32} {without:6.0f} ns")


def check(records: int) -> int:
    """Reads what another process writes; 1 where anything was torn, reordered or lost."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder) / "a.ring"
        command = [sys.executable, __file__, "--records", str(records), "--write", str(path)]
        begin = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            reader, count, torn, reordered, reads, is_over = RingReader(path), 0, 0, 0, 0, False
            while not is_over:
                is_over = process.poll() is not None
                part = reader.read()
                reads += 1
                numbers = part["time_ns"]
                torn += int((part["value"] != numbers * np.uint64(MIX)).sum() + (part["detail"] != ~numbers).sum())
                reordered += int((numbers != np.arange(count, count + len(part), dtype=np.uint64)).sum())
                count += len(part)
            tries = int(process.stdout.read())
        taken = time.perf_counter() - begin
        print(f"{count:,} records in {taken:.0f} s and {reads:,} reads; {tries - count:,} tries found the ring full")
        print(f"torn {torn}, reordered {reordered}, lost {reader.lost}, counted drops {reader.drops:,}")
        return int(bool(torn or reordered or reader.lost or count != records))


def write(path: Path, records: int) -> None:
    """Writes so many; where the ring is full a record is turned away, and written again."""
    ring = RingProducer(path, CAPACITY)
    print("made", flush=True)
    emit, number, tries, mask = ring.emit, 0, 0, 2**64 - 1
    while number < records:
        tries += 1
        if emit(Kind.SCOPE, number, number * MIX & mask, number // PER_STEP, 1, 0, 0, ~number & mask):
            number += 1
            if not number % PER_STEP:
                ring.commit(number // PER_STEP)
        else:
            time.sleep(0.0005)
    print(tries, flush=True)


if __name__ == "__main__":
    main()
