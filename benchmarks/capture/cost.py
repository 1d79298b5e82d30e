"""What capture costs a step of a whole job: jobs with it and without in turns (on, off, off, on), and by counting.

    python benchmarks/capture/cost.py                          # steps of 2, 20 and 200 ms
    python benchmarks/capture/cost.py --step-ms 20 --turns 6   # 24 jobs, 9 minutes on two quiet cores
    python benchmarks/capture/cost.py --json

A job is torchrun with ranks of DistributedDataParallel over gloo, a DataLoader and AdamW: 1 ms of CPU a step. The rest
of a step is an operator that keeps the host waiting as a device would; with `--computes` it is products of matrices,
which leave nothing of capture in the caches. Jobs with capture have their agent and a coordinator, which may sample.
Each turn is one pair of differences (on − off): of the CPU time that a rank's process takes in its median step, all
threads, and of the mean step's wall time. By counting: the functions of Python and C that capture calls in a step, its
records, and the CPU time of a step with capture less one without, in one process (the lowest fifth of many).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import Row, report, say

ROOT: Final = Path(__file__).parents[2]
ORDER: Final = ("on", "off", "off", "on")
SECONDS: Final = 8.0
"""Of a job's steps; it starts for longer."""
SHORT_MS: Final = 5.0
"""Shorter steps are thinned, from the 128th on."""
MOST_STEPS: Final = 1500
BATCH, WIDTH = 16, 64


def main() -> int:
    """Run the jobs, and print what a step took; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[2.0, 20.0, 200.0])
    parser.add_argument("--turns", type=int, default=2, help="of four jobs: two pairs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--computes", action="store_true", help="instead of waiting for a device")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--job", metavar="MS,STEPS", help=argparse.SUPPRESS)
    parser.add_argument("--count", metavar="MS", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job or options.count is not None:
        train(options)
        return 0
    rows: list[Row] = []
    for step_ms in options.step_ms:
        counted = json.loads(run([sys.executable, __file__, "--count", str(step_ms), *computes(options)])[-1])
        pairs = [pair for turn in range(options.turns) for pair in pairs_of(turn, step_ms, options)]
        rows += [row_of(step_ms, what, pairs, counted) for what in ("cpu_us", "wall_us")]
    load = f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} when it was over"
    report("what capture costs a step and rank", rows, as_json=options.json, notes=[load])
    return 0


def warm_up(step_ms: float) -> int:
    """Steps that are left out."""
    return 200 if step_ms < SHORT_MS else 20


def computes(options: argparse.Namespace) -> list[str]:
    """As the option of another process."""
    return ["--computes"] if options.computes else []


def row_of(step_ms: float, what: str, pairs: Sequence[dict[str, dict[str, float]]], counted: dict[str, float]) -> Row:
    """The median and the range of what a step takes longer with capture."""
    more = [pair["on"][what] - pair["off"][what] for pair in pairs]
    off = statistics.median(pair["off"][what] for pair in pairs)
    return {
        "step": f"{step_ms:g} ms",
        "time": {"cpu_us": "CPU", "wall_us": "wall"}[what],
        "without µs": round(off),
        "more µs": round(statistics.median(more)),
        "from": round(min(more)),
        "to": round(max(more)),
        "% of the step": round(statistics.median(more) / (step_ms * 10), 2),
        "pairs": len(more),
        **counted,
    }


def pairs_of(turn: int, step_ms: float, options: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Of one turn: its first two jobs and its last two."""
    done = []
    for number, mode in enumerate(ORDER):
        done.append((mode, job(mode, step_ms, options)))
        say(f"steps of {step_ms:g} ms, turn {turn + 1} of {options.turns}, job {number + 1} of 4: {mode} {done[-1][1]}")
    return [dict(done[:2]), dict(done[2:])]


def job(mode: str, step_ms: float, options: argparse.Namespace) -> dict[str, float]:
    """One job: the mean over its ranks."""
    steps = warm_up(step_ms) + min(max(round(SECONDS * 1e3 / step_ms), 40), MOST_STEPS)
    ranks = ["--standalone", "--nproc-per-node", str(options.ranks), __file__]
    command = [sys.executable, "-m", "torch.distributed.run", *ranks, "--job", f"{step_ms},{steps}", *computes(options)]
    with tempfile.TemporaryDirectory(prefix="kair-cost-") as folder:
        if mode == "off":
            lines = run(command, answers=options.ranks)
        else:
            kair = [sys.executable, "-m", "kair_tui"]
            places = {"KAIR_STORE": f"{folder}/store", "KAIR_RUN_DIR": f"{folder}/run", "KAIR_AGENT_IDLE": "1"}
            listen = ["coordinator", "--job", "cost", "--listen", "127.0.0.1:0", "--leave-after", "1"]
            coordinator = subprocess.Popen(
                [*kair, *listen], env=os.environ | places, cwd=ROOT, stderr=subprocess.DEVNULL
            )
            try:
                lines = run([*kair, "capture", "run", "--job", "cost", "--", *command], places, options.ranks)
            finally:
                coordinator.kill()
                coordinator.wait()
    taken = [json.loads(line) for line in lines]
    return {name: round(statistics.mean(one[name] for one in taken), 1) for name in taken[0]}


def run(command: Sequence[str], more: dict[str, str] | None = None, answers: int = 1) -> list[str]:
    """The answers that processes print, a line of JSON each. Raises SystemExit where some are missing.

    A job that has answered may end badly: torch aborts now and then while it takes its own threads down.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6", **(more or {})}
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if len(lines) != answers:
        raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    return lines


def train(options: argparse.Namespace) -> None:
    """One rank of a job, or the process that counts."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    left = torch.randn(256, 256)

    def device(step_ms: float) -> None:
        until = time.perf_counter() + step_ms / 1e3
        while options.computes and time.perf_counter() < until:
            torch.mm(left, left)
        time.sleep(max(until - time.perf_counter(), 0.0))

    if options.job:
        dist.init_process_group("gloo")
    layers = [layer for _ in range(2) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    plain = nn.Sequential(*layers, nn.Linear(WIDTH, 8))
    model = nn.parallel.DistributedDataParallel(plain) if options.job else plain
    optimizer = torch.optim.AdamW(model.parameters())

    def steps(count: int, waits_ms: float) -> list[tuple[int, int]]:
        """CPU and wall time of each, ns."""
        rows = torch.utils.data.TensorDataset(torch.randn(count * BATCH, WIDTH))
        taken, before = [], (time.process_time_ns(), time.perf_counter_ns())
        for (batch,) in torch.utils.data.DataLoader(rows, BATCH):
            device(waits_ms)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            now = (time.process_time_ns(), time.perf_counter_ns())
            taken.append((now[0] - before[0], now[1] - before[1]))
            before = now
        return taken

    if options.job:
        step_ms, count = options.job.split(",")
        # What a step takes by itself, with two ranks that share no core, is about a millisecond.
        of_all = steps(int(count), max(float(step_ms) - 1.0, 0.0))
        cpu, wall = zip(*of_all[warm_up(float(step_ms)) :], strict=True)
        told = {"cpu_us": statistics.median(cpu) / 1e3, "wall_us": statistics.mean(wall) / 1e3}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        dist.barrier()
        dist.destroy_process_group()
    else:
        sys.stdout.write(json.dumps(counts(steps, options.count - 1.0)) + "\n")


def counts(steps: Any, waits_ms: float) -> dict[str, float]:  # noqa: ANN401  # a function of `train`
    """Calls, records and CPU time of capture in a step."""
    import kair_capture as kair
    from kair_capture.agent.ring_reader import RingReader
    from kair_capture.job.session import current

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ["KAIR_RUN_DIR"] = folder
        kair.start(job="cost")
        steps(warm_up(waits_ms), waits_ms)
        session = current.session
        assert session is not None
        (ring,) = Path(folder).glob("rank-*-0.ring")
        reader, found = RingReader(ring), Counter[str]()
        reader.read()
        number = 64 if waits_ms < SHORT_MS else 16
        steps(number, waits_ms)
        records = len(reader.read())

        def noted(frame: Any, event: str, _: object) -> None:  # noqa: ANN401  # Python's own type of frames
            if event in ("call", "c_call") and "kair_capture" in frame.f_code.co_filename:
                found[event] += 1

        sys.setprofile(noted)
        steps(number, waits_ms)
        sys.setprofile(None)
        few = max(min(round(500 / (waits_ms + 1)), 60), 10)
        lowest: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(12):
            for is_on in (turn % 2 == 0, turn % 2 == 1):
                current.session = session if is_on else None
                lowest[is_on].append(statistics.quantiles((one for one, _ in steps(few, waits_ms)), n=5)[0])
            reader.read()
        current.session = session
        kair.stop()
    more = statistics.median(on - off for on, off in zip(lowest[True], lowest[False], strict=True))
    return {
        "records": round(records / number, 1),
        "calls of Python": round(found["call"] / number, 1),
        "of C": round(found["c_call"] / number, 1),
        "counted µs": round(more / 1e3, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
