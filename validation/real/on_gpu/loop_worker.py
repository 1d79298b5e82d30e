"""The process that has the GPU: it probes the launch queue and records one seed's loop after another."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import time
import traceback
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from on_gpu.accelerator import Accelerator, Cuda, Rehearsed
from on_gpu.companion import Companion
from on_gpu.loop_drawing import HEALTHY, Loop, LoopFault, draw_loop
from on_gpu.loop_parts import seeds_of, tell
from on_gpu.loop_recording import Plan, Recording, faulty, with_more_data
from on_gpu.loops import Program, calibrated, kernels_of_a_step, period_ms
from on_gpu.queue_probes import ask

SHORTEST_TURN_S: Final = 12.0
"""With less time left no seed is begun."""
PROBES_S: Final = 30.0


def work(options: argparse.Namespace) -> int:
    """Have the GPU: probe its queue, and record seeds while there is time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    # With graphs the profiler must not be torn down between recordings.
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    until = time.monotonic() + options.seconds
    with nullcontext() if options.dry_run else Companion() as companion:
        import torch

        torch.set_num_threads(1 if options.dry_run else 4)
        torch.set_float32_matmul_precision("high")
        tell("say", text=json.dumps(surroundings()))
        if not options.no_probes and not options.dry_run:
            probe(options.scratch, until)
        for seed in seeds_of(options.seeds):
            if until - time.monotonic() < SHORTEST_TURN_S:
                break
            record_seed(draw_loop(seed), options, companion, until)
    tell("end")
    return 0


def surroundings() -> dict[str, Any]:
    """What the recordings were made with."""
    import torch

    told: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        told |= {"device": properties.name, "multiprocessors": properties.multi_processor_count}
        told["driver"] = driver_version()
    return told


def driver_version() -> str:
    """Of the GPU's driver; empty where it cannot be asked."""
    with suppress(OSError, subprocess.SubprocessError):
        words = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.max.sm", "--format=csv,noheader"]
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return ""


def probe(scratch: Path, until: float) -> None:
    """Tell what the probes of the queue say, section by section."""
    try:
        tell("probes", section="surroundings", said=surroundings())
        begun = time.monotonic()
        for section, said in ask(Cuda(), scratch, until=min(until, begun + PROBES_S)):
            tell("probes", section=section, said=said)
            if said.get("kernel"):
                tell("say", text=f"{section}: {said['kernel']}")
        trace = scratch / "drain.pt.trace.json"
        if trace.exists():
            tell("kept", name="probes/drain", trace=str(trace))
        tell("say", text=f"probed in {time.monotonic() - begun:.1f} s")
    except Exception:
        tell("say", text=f"the probes failed: {traceback.format_exc()[-1500:]}")


def probe_shortly(options: argparse.Namespace) -> int:
    """The depths alone, as one line of JSON."""

    until = time.monotonic() + options.seconds
    print(json.dumps(dict(ask(Cuda(), Path(), short=True, until=until))))
    return 0


def record_seed(loop: Loop, options: argparse.Namespace, companion: Companion | None, until: float) -> None:
    """All recordings of the loop, each told when it is there; what fails is told, too."""
    import torch

    begun = time.monotonic()
    tell("say", seed=loop.seed, text=f"seed {loop.seed}: {summary(loop)}")
    try:
        if options.dry_run:
            on: Accelerator = Rehearsed()
            record_all(rehearsed(loop), on, options, None, until)
        else:
            # The stream that a graph of the whole step is captured on must not be the default one.
            stream = torch.cuda.Stream() if loop.way == "whole_graph" else torch.cuda.default_stream()
            with torch.cuda.stream(stream):
                on = Cuda()
                record_all(loop, on, options, companion, until)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"[:400]
        tell("failed", seed=loop.seed, loop=loop.told(), error=told, where=traceback.format_exc()[-1500:])
        tell("say", seed=loop.seed, text=f"seed {loop.seed} failed: {told}")
        if not options.dry_run:
            # Where the device itself has failed this fails, too: the next process goes on with the next seed.
            torch.cuda.synchronize()
        torch._dynamo.reset()
    gc.collect()
    if not options.dry_run:
        torch.cuda.empty_cache()
    tell("say", seed=loop.seed, text=f"seed {loop.seed}: {time.monotonic() - begun:.1f} s")


def summary(loop: Loop) -> str:
    """One line about it."""
    faults = ", ".join(f"{fault.cause} {fault.severity}" for fault in loop.faults)
    return (
        f"{loop.model} {loop.blocks}x{loop.width} {loop.step_ms} ms {loop.way} {loop.precision} {loop.optimizer} "
        f"{loop.sync}/{loop.sync_every} {loop.input} x{loop.accumulation} {loop.buckets} buckets; {faults}"
    )


def rehearsed(loop: Loop) -> Loop:
    """The loop, small enough for the CPU."""
    faults = tuple(replace(fault, severity=min(fault.severity, 0.3)) for fault in loop.faults)
    small: dict[str, Any] = {"blocks": 2, "width": 64, "way": "eager", "precision": "float32", "steps": 4}
    return replace(loop, faults=faults, **small)


def record_all(
    loop: Loop,
    on: Accelerator,
    options: argparse.Namespace,
    companion: Companion | None,
    until: float,
) -> None:
    """The healthy recordings, then those with a fault."""

    program = calibrated(loop, on, shortest=options.dry_run)
    step_ms, kernels = period_ms(program, on), kernels_of_a_step(program, on)
    plan = Plan(loop, kernels, 1000.0 if options.dry_run else step_ms)
    made = {
        "seed": loop.seed,
        "loop": loop.told(),
        "examples": program.examples,
        "kernels_of_a_step": kernels,
        "step_ms": round(step_ms, 3),
        "alone_ms": [round(one, 3) for one in program.alone_ms],
        "transfer_us": [round(one, 1) for one in program.transfer_us],
        "bucket_elements": [flat.numel() for flat in program.buckets],
        "product_rows": len(program.rows),
        "made_with": surroundings_once(),
    }
    turns: list[tuple[str, LoopFault | None]] = [(f"healthy{rank}", None) for rank in range(HEALTHY)]
    turns += [(f"fault{place}", fault) for place, fault in enumerate(loop.faults)]
    for name, fault in turns:
        if until - time.monotonic() < SHORTEST_TURN_S / 2:
            tell("failed", **made, name=name, error="no time was left")
            continue
        record_one(program, fault, Turn(name, plan, made, options.scratch), on, companion)


SURROUNDINGS: Final[dict[str, Any]] = {}


def surroundings_once() -> dict[str, Any]:
    """As `surroundings`, asked once in a process."""
    if not SURROUNDINGS:
        SURROUNDINGS.update(surroundings())
    return SURROUNDINGS


class Turn:
    """What one recording is called, how long it is, and what is told beside it."""

    def __init__(self, name: str, plan: Plan, made: dict[str, Any], scratch: Path) -> None:
        self.name, self.plan, self.made = name, plan, made
        self.path = f"seed{made['seed']:04d}/{name}"
        self.trace = scratch / f"{made['seed']:04d}.{name}.json"


def record_one(
    program: Program,
    fault: LoopFault | None,
    turn: Turn,
    on: Accelerator,
    companion: Companion | None,
) -> None:
    """One recording, told; what it fails of is told, too, where the device can go on."""

    begun, step_ms = time.monotonic(), turn.made["step_ms"]
    chance = np.random.default_rng((program.loop.seed, len(turn.name), int(turn.name[-1])))
    try:
        delays: list[int] = []
        if fault is None:
            measured = Recording(program, on, turn.plan).run(turn.trace)
        elif fault.cause == "more_data":
            with with_more_data(program, fault, on) as larger:
                measured = Recording(larger, on, turn.plan).run(turn.trace)
                measured["examples_of_fault"] = larger.examples
        elif fault.cause == "co_running" and companion is not None:
            with companion.busy(fault.severity):
                measured = Recording(program, on, turn.plan).run(turn.trace)
        else:
            with faulty(program, fault, on, step_ms, chance) as delays:
                measured = Recording(program, on, turn.plan).run(turn.trace)
    except Exception as error:
        on.synchronize()
        told = f"{type(error).__name__}: {error}"[:400]
        tell("failed", **turn.made, name=turn.path, error=told, where=traceback.format_exc()[-1500:])
        tell("say", text=f"  {turn.name} failed: {told}")
        return
    finally:
        gc.collect()
    told_fault = None if fault is None else asdict(fault)
    tell(
        "recorded",
        **turn.made,
        name=turn.path,
        fault=told_fault,
        measured=measured,
        delays_ns=delays,
        trace=str(turn.trace),
    )
    periods = f"{measured['period_before_us'] / 1000:.2f} then {measured['period_us'] / 1000:.2f} ms"
    lead = measured["lead_us"][measured["first_profiled"]] / 1000
    tell("say", text=f"  {turn.name}: {periods}, ahead {lead:.1f} ms, {time.monotonic() - begun:.1f} s")
