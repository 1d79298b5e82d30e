"""How long a trainer stands still for capture, with few and with many ranks at one coordinator: figure 6 of the paper.

One real rank trains under `kair capture run`, with its agent; the agents of all other hosts are simulated, as in
scale.py. Windows are asked for all the time, on the real rank. It tells how long it stood still at the end of an
ordinary step (its records become visible), and at the end of a window (the profiler stops, and the file is written).

    python benchmarks/capture/pause.py --ranks 8,256,2048 --seconds 60
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import scale

from kair_capture.places import JobPlaces
from kair_capture.wire import Capture, Kind

ROOT = Path(__file__).parents[2]
STEP_S = 0.5
WINDOW = 2
ASK_S = 4.0


def train(seconds: float) -> None:
    """Steps of a fixed length and a fixed number of operators; prints what the ends of steps took."""
    import torch

    import kair_capture as kair
    from kair_capture.job.session import current

    torch.set_num_threads(1)
    kair.start()
    left, plain, windows = torch.randn(64, 64), [], []
    due, until = time.monotonic(), time.monotonic() + seconds
    while time.monotonic() < until:
        due += STEP_S
        for _ in range(200):
            left = torch.tanh(left @ left)
        time.sleep(max(due - time.monotonic(), 0.0))
        assert current.session is not None
        was_sampled = current.session.steps.sampled
        begin, cpu = time.perf_counter_ns(), time.thread_time_ns()
        kair.step()
        took = ((time.perf_counter_ns() - begin) / 1e6, (time.thread_time_ns() - cpu) / 1e6)
        if was_sampled and not current.session.steps.sampled:
            windows.append(took)
        elif not was_sampled and not current.session.steps.sampled:
            plain.append(took)
    print(json.dumps({"plain": plain[10:], "windows": windows}))


class Crowd(scale.Crowd):
    """All hosts but the first, which is real; one of them also asks for windows, as a person would."""

    def __init__(self, places: JobPlaces, ranks: int) -> None:
        super().__init__(places, ranks)
        self.asks = self.hosts[0]
        self.hosts = self.hosts[1:]
        self.took[Kind.CAPTURE] = []

    def run_beside(self, trainer: "subprocess.Popen[bytes]") -> None:
        """Beats and rows of each host once a step, and a window every few seconds, while the trainer runs."""
        while trainer.poll() is None:
            self.ask(self.asks, Kind.CAPTURE, Capture(WINDOW, (0,)).packed())
            if self.hosts:
                self.run(ASK_S)
            else:
                time.sleep(ASK_S)
                self.hear()


def measured(ranks: int, seconds: float) -> dict[str, Any]:
    """The trainer's pauses among so many ranks."""
    scale.STEP_S = STEP_S
    with tempfile.TemporaryDirectory(prefix="kair-pause-") as folder:
        places = JobPlaces(Path(folder) / "store", "pause")
        own = {"KAIR_STORE": str(places.store), "KAIR_JOB": places.job, "KAIR_RUN_DIR": f"{folder}/run"}
        own |= {"KAIR_SPOOL_DIR": f"{folder}/spool", "KAIR_AGENT_IDLE": "2", "KAIR_HOST": "node-real"}
        environment = {**os.environ, **own, "RANK": "0", "WORLD_SIZE": str(ranks)}
        kair = [sys.executable, "-m", "kair_tui"]
        listening = (*kair, "coordinator", "--job", places.job, "--listen", "127.0.0.1:0", "-q")
        coordinator = subprocess.Popen(listening, cwd=ROOT, env=environment)
        try:
            while not places.address.exists():
                time.sleep(0.1)
            crowd = Crowd(places, ranks)
            crowd.meet(crowd.asks)
            crowd.introduce()
            trains = (sys.executable, __file__, "--train", str(seconds))
            command = (*kair, "capture", "run", "--job", places.job, "--", *trains)
            with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as trainer:
                # All count their steps from the same moment: a window is of the same steps everywhere.
                while trainer.poll() is None and not any(Path(folder, "run").glob("*.ring")):
                    time.sleep(0.05)
                crowd.run_beside(trainer)
                told = json.loads(trainer.communicate(timeout=60)[0])
            status = json.loads(places.status.read_bytes())
        finally:
            coordinator.terminate()
            coordinator.wait()
    return {
        "ranks": ranks,
        "heard": sum(rank["step"] >= 0 for rank in status["ranks"]),
        "steps": len(told["plain"]),
        "windows": len(told["windows"]),
        "missed": sum(len(window["missed"]) for window in status["sampling"]["windows"]),
        "step_end_ms": _median(told["plain"], 0),
        "step_end_cpu_ms": _median(told["plain"], 1),
        "window_end_ms": _median(told["windows"], 0),
        "window_end_cpu_ms": _median(told["windows"], 1),
        "longest_step_end_ms": round(max((one[0] for one in told["plain"]), default=0), 3),
    }


def _median(pairs: list[list[float]], column: int) -> float | None:
    return round(statistics.median(one[column] for one in pairs), 3) if pairs else None


def main() -> None:
    """Prints a line for each size, then the ratios of the largest to the smallest."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="8,256,2048")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--train", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        train(given.train)
        return
    found = []
    for ranks in map(int, given.ranks.split(",")):
        found.append(measured(ranks, given.seconds))
        print(json.dumps(found[-1]), flush=True)
    keys = ("step_end_ms", "step_end_cpu_ms", "window_end_ms", "window_end_cpu_ms")
    ratios = {key: round(found[-1][key] / found[0][key], 2) for key in keys if found[0][key] and found[-1][key]}
    print(json.dumps({"ratios": f"{found[-1]['ranks']} ranks to {found[0]['ranks']}", **ratios}))


if __name__ == "__main__":
    main()
