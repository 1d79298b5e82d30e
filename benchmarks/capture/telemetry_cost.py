"""What the agent's sampler costs: its CPU time beside eight processes that compute a little, on and off in turns.

Each turn is a process of its own, which counts its CPU time and that of all its threads (with files that it writes),
from when it has settled on. It wakes ten times a second as the agent does, in turns with `on` and without `off` the
sampler: the difference is the sampler's.

    python benchmarks/capture/telemetry_cost.py --seconds 60 --turns 3
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kair_capture.agent.telemetry.sampler import Telemetry

RANKS = 8
SETTLE_S = 65.0
"""The first readings open files and find what there is; by then the sampler knows what it costs, and has a file."""
TURN_S = 0.1
RANK = """
import time, os, random
while True:
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until: pass
    open("/proc/self/stat").read()
    time.sleep(0.05)
"""


def measure(seconds: float, pids: list[int], *, is_on: bool) -> None:
    """Prints CPU s per s, and how the sampler's tasks share it."""
    with tempfile.TemporaryDirectory() as folder:
        telemetry = Telemetry(Path(folder) / "samples", "node", lambda *_: None, lambda _: None)
        ranks = dict(enumerate(pids)) if is_on else {}
        telemetry.start()
        live(telemetry, ranks, SETTLE_S)
        before, began = cpu(), time.monotonic()
        live(telemetry, ranks, seconds)
        spent, took = cpu() - before, time.monotonic() - began
        rows = len(telemetry.rows)
        costs = {task.words: task.cost_s for task in (*telemetry.pacer.tasks, *telemetry.device_pacer.tasks)}
        told = {
            "cpu_s_per_s": spent / took,
            "tasks_us": {words: round(cost * 1e6) for words, cost in costs.items() if cost},
            "stretched": telemetry.pacer.stretched,
            "rows_waiting": rows,
            "notes": telemetry.notes(),
        }
        telemetry.close()
        print(json.dumps(told))


def live(telemetry: Telemetry, ranks: dict[int, int], seconds: float) -> None:
    """As the agent, which wakes to look at rings, and says twice a second who is there."""
    until, turn = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        turn += 1
        os.listdir("/dev/shm")  # noqa: PTH208  (names alone)
        if turn % 5 == 0:
            telemetry.look(ranks)
        time.sleep(TURN_S)


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--measure", choices=("on", "off"), help=argparse.SUPPRESS)
    parser.add_argument("--pids", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        pids = [int(pid) for pid in options.pids.split(",")]
        measure(options.seconds, pids, is_on=options.measure == "on")
        return
    ranks = [subprocess.Popen([sys.executable, "-c", RANK]) for _ in range(RANKS)]
    try:
        spent: dict[str, list[float]] = {"off": [], "on": []}
        for _ in range(options.turns):
            for kind, of in spent.items():
                pids = ",".join(str(rank.pid) for rank in ranks)
                command = [
                    sys.executable,
                    __file__,
                    "--measure",
                    kind,
                    "--pids",
                    pids,
                    "--seconds",
                    str(options.seconds),
                ]
                told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                of.append(told["cpu_s_per_s"])
                print(kind, json.dumps(told), flush=True)
        more = [on - off for on, off in zip(spent["on"], spent["off"], strict=True)]
        print(
            f"{os.cpu_count()} cores, {RANKS} ranks: {100 * statistics.median(more):.3f} % of a core for sampling "
            f"(median of {len(more)} turns; {100 * min(more):.3f} to {100 * max(more):.3f} %)"
        )
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    main()
