"""Compose recordings of single processes on a real GPU into data-parallel jobs.

python validation/real/on_gpu/compose.py LOOPS... --out JOBS [--seeds 0:1000]

LOOPS are folders of seeds, as `packing.unpack` makes them of what record_loops.py wrote. Of each seed one job is made
of its healthy recordings, and one with each fault, in which the faulty recording takes the place of a healthy one on a
drawn rank. Kernels, launches and noise are as recorded; only what depends on other ranks is computed (loop_replay.py):
where a loop had a kernel that stands for a collective, the job has one that ends when the last rank has come. JOBS/NAME
receives `input/` with a trace of each rank, and `truth.json`.

Recordings of one program are never quite alike: hosts of a machine that others use, too, are slower at times. So the
truth has each rank's own time on the host and on the device, and what the job would save if the rank's recording were
replaced by a peer's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from on_gpu.composed_trace import Member, composed, packed
from on_gpu.loop_drawing import HEALTHY
from on_gpu.loop_parts import seeds_of
from on_gpu.loop_program import PLACES, Program
from on_gpu.loop_reading import Event, program_of, read_document
from on_gpu.loop_replay import Replayed, replay

ABSORBED: Final = 0.005
"""Of the period: what costs less the queue hides, and nobody is to be accused of it."""
CAUSES: Final = {
    "larger_product": "compute",
    "co_running": "compute",
    "more_data": "uneven_work",
    "slow_input": "input",
    "sleeping_host": "host",
    "busy_python": "host",
}
"""What each fault is to Kair."""
OPERATORS: Final = {"larger_product": "aten::mm"}
TRACE, TOLD = ".pt.trace.json.gz", ".json"


@dataclass(frozen=True)
class Recording:
    """One recorded run of a loop."""

    name: str
    told: dict[str, Any]
    """What the loop measured, its draw and its fault."""
    document: Event
    program: Program
    alone_us: float
    """The period of its program in steady state, by itself."""

    @property
    def replay_error(self) -> float:
        """By how much the program, run by itself, is slower than the recorded steps were by the device's events."""
        return self.alone_us / float(self.told["measured"]["period_us"]) - 1.0


@dataclass(frozen=True)
class Job:
    """A composed job."""

    name: str
    ranks: tuple[Recording, ...]
    fault: dict[str, Any] | None = None
    guilty: int | None = None
    instead: Recording | None = None
    """The guilty rank's recording without the fault."""


def main() -> int:
    """Compose the seeds of the command line; 0 where there is a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", type=Path, nargs="+", help="folders of seeds")
    parser.add_argument("--out", type=Path, required=True, help="the folder to fill")
    parser.add_argument("--seeds", default="0:1000000", help="FIRST:STOP")
    options = parser.parse_args()
    made = 0
    for folder in folders_of(options.loops, options.seeds):
        recordings = read_seed(folder)
        if any(f"healthy{rank}" not in recordings for rank in range(HEALTHY)):
            print(f"{folder.name}: {len(recordings)} recordings are no job")
            continue
        for job in jobs_of(folder.name, recordings):
            truth = write_job(job, options.out / job.name)
            made += 1
            print(f"{job.name:32} {summary(truth)}", flush=True)
    return 0 if made else 1


def folders_of(loops: Sequence[Path], seeds: str) -> list[Path]:
    """The folders of the seeds."""
    wanted = seeds_of(seeds)
    found = [path for folder in loops for path in folder.glob("seed*") if int(path.name.removeprefix("seed")) in wanted]
    return sorted(found, key=lambda path: path.name)


def read_seed(folder: Path) -> dict[str, Recording]:
    """By name the recordings of a seed."""
    paths = sorted(folder.glob(f"*{TRACE}"))
    return {(name := path.name.removesuffix(TRACE)): read_recording(folder, name) for path in paths}


def read_recording(folder: Path, name: str) -> Recording:
    """One of them."""
    told = json.loads((folder / f"{name}{TOLD}").read_text(encoding="utf-8"))
    document, loop = read_document(folder / f"{name}{TRACE}"), told["loop"]
    program = program_of(document, lag=loop["sync_every"] if loop["sync"] == "lagged" else 0)
    return Recording(name, told, document, program, replay([program]).period_us)


def jobs_of(seed: str, recordings: dict[str, Recording]) -> Iterator[Job]:
    """The healthy job, and one with each fault."""
    healthy = tuple(recordings[f"healthy{rank}"] for rank in range(HEALTHY))
    yield Job(f"{seed}_healthy", healthy)
    for name, recording in recordings.items():
        if name.startswith("fault"):
            chance = np.random.default_rng((recording.told["seed"], int(name.removeprefix("fault")), 0x72616E6B))
            guilty = int(chance.integers(HEALTHY))
            ranks = (*healthy[:guilty], recording, *healthy[guilty + 1 :])
            fault = recording.told["fault"]
            yield Job(f"{seed}_{name}_{fault['cause']}", ranks, fault, guilty, healthy[guilty])


def write_job(job: Job, folder: Path) -> dict[str, Any]:
    """Write its traces and its truth, which is returned."""
    replayed = replay([one.program for one in job.ranks])
    truth = truth_of(job, replayed)
    (folder / "input").mkdir(parents=True, exist_ok=True)
    (folder / "truth.json").write_text(json.dumps(truth, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    first = job.ranks[0].program.placed.begin - replayed.ranks[0].laps[-1].begin
    base = job.ranks[0].document.get("baseTimeNanoseconds", 0)
    for at, recording in enumerate(job.ranks):
        member = Member(at, len(job.ranks), tuple(recording.told["bucket_elements"]))
        document = composed(recording.document, replayed.ranks[at], member, first) | {"baseTimeNanoseconds": base}
        name = f"node{at}_{process_of(document)}.{base + at}{TRACE}"
        (folder / "input" / name).write_bytes(packed(document))
    return truth


def process_of(document: Event) -> int:
    """The host process's number."""
    return next(int(one["pid"]) for one in document["traceEvents"] if one.get("cat") == "user_annotation")


def truth_of(job: Job, replayed: Replayed) -> dict[str, Any]:
    """What is wrong with the job, and what it costs."""
    period = healthy = replayed.period_us
    if job.instead is not None:
        without = [job.instead if at == job.guilty else one for at, one in enumerate(job.ranks)]
        healthy = replay([one.program for one in without]).period_us
    loss = period - healthy
    hidden = job.fault is not None and loss < ABSORBED * period
    faults = []
    if job.fault is not None:
        cause = job.fault["cause"]
        faults = [
            {
                "fault": cause,
                "cause": CAUSES[cause],
                "ranks": [job.guilty],
                "operator": OPERATORS.get(cause),
                "severity": job.fault["severity"],
                "probability": job.fault["probability"],
            }
        ]
    return {
        "name": job.name,
        "seed": job.ranks[0].told["seed"],
        "loop": job.ranks[0].told["loop"],
        "queue": PLACES,
        "recorded_steps": job.ranks[0].program.steps,
        "laps": len(replayed.ranks[0].laps),
        "steady": replayed.steady,
        "verdict": "no_straggler" if job.fault is None or hidden else "straggler",
        "absorbed": hidden,
        "period_us": round(period, 1),
        "healthy_period_us": round(healthy, 1),
        "loss_us": round(loss, 1),
        "loss_of_period": round(loss / period, 5),
        "faults": faults,
        "ranks": [of_rank(job, replayed, at) for at in range(len(job.ranks))],
    }


def of_rank(job: Job, replayed: Replayed, at: int) -> dict[str, Any]:
    """What a rank does itself in a step, and what the job would save with a peer's recording in place of its own."""
    recording = job.ranks[at]
    peers = sorted((one for one in job.ranks if one is not recording), key=lambda one: one.alone_us)
    typical = peers[(len(peers) - 1) // 2]
    with_typical = [typical.program if one is recording else one.program for one in job.ranks]
    saved = replayed.period_us - replay(with_typical).period_us
    return {
        "recording": recording.name,
        "host_us": round(recording.program.host_us, 1),
        "device_us": round(recording.program.device_us, 1),
        "alone_us": round(recording.alone_us, 1),
        "replay_error": round(recording.replay_error, 5),
        "lead_us": round(replayed.ranks[at].lead_us, 1),
        "costs_of_period": round(saved / replayed.period_us, 5),
    }


def summary(truth: dict[str, Any]) -> str:
    """One line about it."""
    costs = " ".join(f"{100 * one['costs_of_period']:.1f}" for one in truth["ranks"])
    guilty = [(one["fault"], one["ranks"]) for one in truth["faults"]]
    steady = "" if truth["steady"] else " not steady"
    return (
        f"{truth['verdict']:12} loss {truth['loss_of_period']:7.2%} of {truth['period_us'] / 1e3:6.1f} ms, "
        f"laps {truth['laps']}{steady}, ranks cost {costs} % {guilty}"
    )


if __name__ == "__main__":
    sys.exit(main())
