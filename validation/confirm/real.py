"""`kair confirm` on a real job: four ranks of PyTorch over gloo, with faults that are drawn.

python validation/confirm/real.py --takes 8 --seed 1

Prints a row per take: the fault, who was accused, the verdict, whether it is right, and how much steps vary here.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RANKS = 4
SETTLE = 60
"""Steps after a fault is changed, before it is asked about."""


def main() -> None:
    """Starts the job once, and has it confirmed again and again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--takes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--budget", default="2%")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _takes(Path(folder), options)


def _takes(folder: Path, options: argparse.Namespace) -> None:
    fault, drawn = folder / "fault.json", random.Random(options.seed)
    fault.write_text("{}")
    store = folder / "store"
    environment = {**os.environ, "KAIR_STORE": str(store), "KAIR_JOB": "real", "KAIR_RUN_DIR": str(folder / "run")}
    environment |= {"OMP_NUM_THREADS": "1", "KAIR_SPOOL_DIR": str(folder / "spool")}
    kair = [sys.executable, "-m", "kair_tui"]
    coordinator = [*kair, "coordinator", "--listen", "127.0.0.1:0", "--allow-delays", "-q"]
    job = [*kair, "capture", "run", "--", *_first("chrt", "-f", "5"), "torchrun", "--nproc-per-node", str(RANKS)]
    job += [str(HERE / "real_job.py"), "--fault", str(fault), "--step-ms", str(options.step_ms)]
    processes = [subprocess.Popen(one, env=environment) for one in (coordinator, job)]
    print("| fault | accused | truth | verdict | right | p | growth P, Q (ms) | d (ms) | steps | cost (steps) | sd |")
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    try:
        _reach(kair, environment, 150)
        for _ in range(options.takes):
            print(_take(kair, environment, fault, drawn, options), flush=True)
    finally:
        fault.unlink(missing_ok=True)
        processes[1].wait(60)
        processes[0].terminate()
        processes[0].wait(60)


def _first(*command: str) -> list[str]:
    """The command, where it can be run here: without it, other processes of the machine take the ranks' turns."""
    found = shutil.which(command[0])
    is_allowed = found and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return list(command) if is_allowed else []


def _take(
    kair: list[str], environment: dict[str, str], fault: Path, drawn: random.Random, options: argparse.Namespace
) -> str:
    rank, excess = drawn.randrange(RANKS), drawn.choice([0.0, 0.06, 0.1, 0.15, 0.25])
    accused = rank if drawn.random() < 0.5 else (rank + drawn.randrange(1, RANKS)) % RANKS
    beside = fault.with_suffix(".new")
    beside.write_text(json.dumps({"rank": rank, "excess": excess}))
    beside.replace(fault)
    _reach(kair, environment, _step(kair, environment) + SETTLE)
    command = [*kair, "confirm", "--rank", str(accused), "--steps", str(options.steps), "--budget", options.budget]
    # Half of the excess that was drawn, as the default is half of what is measured.
    dose = max(min(excess / 2, 0.05), 0.03) * options.step_ms
    command += ["--dose", f"{dose:.3f}", "--json", "-q"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    while b"are being sampled" in done.stderr:
        time.sleep(2)
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
    truth = "confirmed" if excess and accused == rank else "withdrawn"
    told = f"| rank {rank} +{excess:.0%} | {accused} | {truth} |"
    if done.returncode:
        return f"{told} – | | {done.stderr.decode().strip()} | | | | | |"
    found: dict[str, Any] = json.loads(done.stdout)
    found = found.get("result", found.get("data", found))
    growth = ", ".join(_growth(one) for one in found["effects"][:2])
    right = "yes" if found["verdict"] == truth else "open" if found["verdict"] == "open" else "NO"
    step_us = found["step_time_us"]
    p, noise = found["p"], found["noise_us"]
    why = f" ({found['ended_because']})" if found["ended_because"] else ""
    return (
        f"{told} {found['verdict']}{why} | {right} | {'–' if p is None else f'{p:.4f}'} | {growth} | "
        f"{found['dose_us'] / 1e3:.2f} | {found['steps_used']} | {found['cost_us'] / step_us:.2f} | "
        f"{'–' if noise is None else f'{noise / step_us:.1%}'} |"
    )


def _growth(effect: dict[str, Any]) -> str:
    if effect["growth_us"] is None:
        return "–"
    half = (effect["growth_high_us"] - effect["growth_low_us"]) / 2
    return f"{effect['growth_us'] / 1e3:+.2f} ± {half / 1e3:.2f}"


def _step(kair: list[str], environment: dict[str, str]) -> int:
    done = subprocess.run([*kair, "watch", "--once", "--json"], env=environment, capture_output=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return -1
    return int(found.get("result", found.get("data", found)).get("step", -1))


def _reach(kair: list[str], environment: dict[str, str], step: int) -> None:
    """Waits for it."""
    until = time.monotonic() + 300
    while _step(kair, environment) < step:
        if time.monotonic() > until:
            raise SystemExit(f"the job does not come to step {step}")
        time.sleep(1)


if __name__ == "__main__":
    main()
