"""Writes simulated jobs as folders that `kair` opens.

python validation/accuracy/job_folder.py FOLDER --layout "dp8 ahead" --scenario "slow GPU ×1.3" --seed 3
python validation/accuracy/job_folder.py FOLDER --layout "3d64 ahead" --scenario healthy --steps 10 --queue 400

Both write a job whose hosts run ahead, as the traces that PyTorch's profiler exports, into FOLDER/input. What is wrong
with it, and what that costs, is printed as JSON and written into FOLDER/truth.json. A scenario is one of those that
scenarios.py names "ahead: …", by a part of its name.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kineto import write_kineto
from layouts import AHEAD
from recording import Recording
from run_ahead import ABSORBED, AheadRecording, ahead_with
from scenarios import Scenario, scenarios
from simulator import JobSpec, simulate_ahead
from table import write_table

from kair_engine.recording.job_file import JobFile, KeptFragment, write_job_file
from kair_engine.recording.kept_files import checksum_of
from kair_engine.trace.files import OWN
from kair_engine.trace.model import FragmentInfo

FRAGMENTS = "fragments"


def main() -> None:
    """Simulates one job that runs ahead, writes its traces and prints its truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", default="dp8 ahead", choices=AHEAD, metavar="NAME", help=", ".join(AHEAD))
    parser.add_argument("--scenario", default="healthy", help="a part of its name")
    parser.add_argument("--seed", type=int, default=0, help="below 1000 for tuning")
    parser.add_argument("--steps", type=int, default=10, help="that are recorded")
    parser.add_argument("--queue", type=int, help="depth of the launch queue, instead of one drawn by the seed")
    options = parser.parse_args()
    scenario = _scenario(options.layout, options.scenario)
    spec = replace(scenario.spec(options.seed), steps=options.steps)
    if options.queue:
        spec = replace(spec, ahead=ahead_with(spec.layout, options.queue))
    truth = {"layout": scenario.layout, "scenario": scenario.name, **write_ahead_folder(spec, options.folder)}
    text = json.dumps(truth, indent=1, ensure_ascii=False)
    (options.folder / "truth.json").write_text(text + "\n")
    print(text)


def _scenario(layout: str, name: str) -> Scenario:
    of_layout = [one for one in scenarios() if one.layout == layout]
    found = [one for one in of_layout if name.lower() in one.name.lower()]
    if len(found) != 1:
        known = "; ".join(one.name for one in found or of_layout)
        raise SystemExit(f"{len(found)} scenarios of {layout} are called {name}; there are {known}")
    return found[0]


def write_ahead_folder(spec: JobSpec, folder: Path) -> Mapping[str, object]:
    """Writes the traces of a job that runs ahead into `folder`/input and returns its truth.

    Raises OSError when the disk is full.
    """
    faulty, healthy = simulate_ahead([spec, spec.healthy()])
    write_kineto(faulty, folder / "input")
    return {"seed": spec.seed, **truth_of(faulty, healthy)}


def truth_of(faulty: AheadRecording, healthy: AheadRecording) -> Mapping[str, object]:
    """What a job's faults are and what they cost; of a fault that its launch queue hides nobody is guilty."""
    cost_ns = faulty.period_ns - healthy.period_ns
    hidden = cost_ns / faulty.period_ns < ABSORBED
    return {
        "queue": faulty.ahead.queue,
        "warm_up_steps": faulty.ahead.warm_up,
        "recorded_steps": faulty.steps,
        "verdict": "straggler" if faulty.truths and not hidden else "no_straggler",
        "absorbed": bool(faulty.truths) and hidden,
        "period_us": faulty.period_ns / 1e3,
        "healthy_period_us": healthy.period_ns / 1e3,
        "loss_us": cost_ns / 1e3,
        "loss_of_period": cost_ns / faulty.period_ns,
        "loss_over_healthy": cost_ns / healthy.period_ns,
        "faults": [
            {
                "fault": truth.fault,
                "cause": truth.cause,
                "ranks": truth.ranks,
                "operator": truth.operator,
                "in_recorded_steps": [step for step, ranks in enumerate(truth.by_step) if ranks] or None,
            }
            for truth in faulty.truths
        ],
    }


def write_job_folder(recording: Recording, folder: Path) -> Path:
    """Writes the operations table and `job.json` into `folder` and returns it. Raises OSError when the disk is full."""
    job = write_table(recording, folder / FRAGMENTS).job
    info = FragmentInfo(
        source="simulated",
        format=job.format,
        ranks=job.ranks,
        rank_known=True,
        world_size=job.world_size,
        hosts=job.hosts,
        device=job.device,
        has_device=job.has_device,
        absolute_time=job.absolute_time,
        operations=job.operations,
        layout=job.layout,
        step_times=job.step_times,
        warnings=job.warnings,
    )
    path = f"{FRAGMENTS}/all-ranks.parquet"
    fragments = (KeptFragment(path, checksum_of(folder / path), info),)
    file = JobFile(folder.name, "2026-01-01T00:00:00+00:00", "simulated", FRAGMENTS, fragments, ())
    write_job_file(folder, file, OWN)
    return folder


if __name__ == "__main__":
    main()
