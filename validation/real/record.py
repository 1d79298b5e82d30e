"""Record real training jobs drawn by seed: traces, and beside them what was measured.

python validation/real/record.py --seeds 0:300 --out DIR [--minutes M] [--device cuda]

Every take counts: none is recorded again, left out or chosen for what is in it. A take is dropped only if a rank
died or the time limit passed; its folder then holds dropped.json with the reason, and the next seed is recorded.
Seeds already there are skipped, so that an interrupted recording can be taken up again. Seeds below 100 are for
tuning, the others for reporting; they are recorded in turn, one of the former and two of the latter.

With `--device cuda` takes on a GPU, whose seeds are their own (on_gpu/gpu_drawing.py): seeds below 40 are for
tuning, the rule is the same with a limit of 60 seconds (and 15 MB of packed traces, more of which the machine with the
GPU could not hand back), and the processes of the ranks are kept from take to take.

With `--pairs` each seed's job is recorded three times: without any fault in DIR/without, with one that all ranks share
in DIR/with, and without any again in DIR/again, which tells by how much the machine itself changed meanwhile; on the
CPU with two ranks, each on a core of its own.

With `--captured` the ranks of takes or such pairs are recorded by Kair's capture, and each take's folder holds a store
instead of traces; with `--stores-later` what the ranks left, of which `captured.py DIR` makes the stores, on another
machine, too.

With `--own-cores` takes of two ranks, each on a core of its own with nothing else beside them, healthy or with a fault
of one rank; their seeds are their own, too.

With `--networks` each is recorded twice: takes of two to four hosts with a slow link of one, or slow links of all, in
DIR/with, and without that in DIR/without.

With `--chores` takes whose rank 0 alone saves, evaluates or logs at the end of every n-th step, and nothing else is
special: where that costs next to nothing they are healthy, where it costs more rank 0 is the truth.

With `--written` takes of fifteen training scripts (written/), which were written apart from all of this.

Needs Linux, root (network namespaces, control groups, priorities) and torch; two cores, or a GPU and 16.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

# The ranks inherit these: the first silences two lines from each of them, the others keep to one thread.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
from captured import into_store, keep_for_later
from drawing import AnyTake, Take, draw, draw_chores, draw_network, draw_own_cores, draw_pair
from on_gpu.gpu_drawing import GpuTake, draw_gpu, draw_gpu_pair
from on_gpu.kept_ranks import KeptRanks, Processes
from on_gpu.net_waits import net_of_stops
from outside import Outside
from ranks import DroppedError, Ranks
from written.script import build_of
from written.script_drawing import SCRIPTS, WrittenTake, draw_written

TUNING_SEEDS = {"cpu": 100, "cuda": 40}


def main() -> int:
    """Record the seeds of the command line, in turn; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, help="FIRST:STOP, or seeds with commas between")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the takes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no take after so many")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what the jobs compute on")
    parser.add_argument("--rehearse", action="store_true", help="run takes on a GPU without one, to try the recorder")
    parser.add_argument("--pairs", action="store_true", help="with and without a fault of all ranks")
    parser.add_argument("--captured", action="store_true", help="record by Kair's capture, into stores")
    parser.add_argument("--stores-later", action="store_true", help="leave the stores to captured.py")
    parser.add_argument("--networks", action="store_true", help="several hosts, with and without slow links")
    parser.add_argument("--written", action="store_true", help="training scripts, each profiled in its own way")
    parser.add_argument("--chores", action="store_true", help="rank 0 saves, evaluates or logs at steps' ends")
    parser.add_argument("--own-cores", action="store_true", help="two ranks, each on a core of its own")
    options = parser.parse_args()
    # A polite request to end is obeyed after everything has been cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    until = time.monotonic() + 60 * options.minutes
    for script in SCRIPTS if options.written else ():
        # The ranks are copies of this process: what it has imported they have, too.
        build_of(script)
    with Processes() as processes:
        for folder, take in planned(options):
            if time.monotonic() > until:
                break
            if not folder.exists():
                begin = time.monotonic()
                outcome = record(take, folder, processes, keep_for_later if options.stores_later else into_store)
                print(f"{folder.name} {time.monotonic() - begin:5.1f} s  {outcome}", flush=True)
    return 0


def planned(options: argparse.Namespace) -> Iterator[tuple[Path, AnyTake]]:
    """The takes to record, and their folders."""
    for seed in in_turn(parse_seeds(options.seeds), TUNING_SEEDS[options.device]):
        name = f"seed{seed:04d}"
        if options.device == "cpu":
            take = drawing_of(options)(seed)
        else:
            gpu_take = draw_gpu_pair(seed) if options.pairs else draw_gpu(seed)
            take = replace(gpu_take, device="cpu", examples=8) if options.rehearse else gpu_take
        take = replace(take, captured=options.captured)
        if options.pairs or options.networks:
            yield options.out / "without" / name, replace(take, faults=())
            yield options.out / "with" / name, take
            if options.pairs:
                yield options.out / "again" / name, replace(take, faults=())
        else:
            yield options.out / name, take


def drawing_of(options: argparse.Namespace) -> Callable[[int], AnyTake]:
    """Which takes on the CPU are asked for."""
    chosen = {
        draw_pair: options.pairs,
        draw_network: options.networks,
        draw_own_cores: options.own_cores,
        draw_chores: options.chores,
        draw_written: options.written,
    }
    return next((of for of, asked in chosen.items() if asked), draw)


def parse_seeds(text: str) -> Iterable[int]:
    first, colon, stop = text.partition(":")
    return range(int(first), int(stop)) if colon else [int(seed) for seed in text.split(",")]


def in_turn(seeds: Iterable[int], first_for_reporting: int) -> Iterator[int]:
    """One seed for tuning, two for reporting, and so on, so that any beginning has a third of the former."""
    seeds = list(seeds)
    tuning = [seed for seed in seeds if seed < first_for_reporting]
    reporting = [seed for seed in seeds if seed >= first_for_reporting]
    rows = zip_longest(tuning, reporting[::2], reporting[1::2])
    return (seed for seed in chain.from_iterable(rows) if seed is not None)


def record(take: AnyTake, folder: Path, processes: Processes, keep: Callable[[Path, AnyTake, Path], None]) -> str:
    """Record the take into the new `folder`, which appears when it is complete; one line about it.

    `keep` puts there what capture left.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "traces").mkdir()
        summary = f"{what_of(take)} {take.ranks}r {take.steps}s {take.load} " + (
            " ".join(f"{fault.kind}@{fault.ranks} {fault.severity}" for fault in take.faults) or "healthy"
        )
        begin = time.time()
        try:
            measured = run(take, scratch, processes)
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
            if take.captured:
                keep(scratch, take, kept)
            else:
                (scratch / "traces").rename(kept / "traces")
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(kept, partial)
        partial.rename(folder)
    return summary


def what_of(take: AnyTake) -> str:
    """What the take trains."""
    if isinstance(take, WrittenTake):
        return take.script
    assert isinstance(take, Take)
    return f"{take.parallel} {take.model}"


def run(take: AnyTake, scratch: Path, processes: Processes) -> dict[str, Any]:
    """Run the take's job; what was measured.

    Raises:
        DroppedError: a rank died, or the time limit passed.
    """
    with ExitStack() as stack:
        outside = Outside(take, scratch, stack)
        stats = outside.prepare_groups()
        if isinstance(take, GpuTake):
            ranks: Ranks = stack.enter_context(KeptRanks(take, scratch, outside, processes))
        else:
            ranks = stack.enter_context(Ranks(take, scratch, outside))
        references = ranks.hear_all("reference")
        outside.prepare_hogs()
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
    reduce_waits(measured, stops)
    return {"ranks": measured, "stops": stops, "outside": outside.measures}


def reduce_waits(ranks: list[dict[str, Any]], stops: list[dict[str, Any]]) -> None:
    """Of each step's waits keep how long they were."""
    for measured in ranks:
        spells = [spell for stop in stops if measured["rank"] in stop["ranks"] for spell in stop["spells"]]
        for step in (*measured["reference"]["steps"], *measured["steps"]):
            if "waits" in step:
                step["waited_ns"] = net_of_stops(step.pop("waits"), spells)


def read_stops(take: AnyTake, scratch: Path) -> list[dict[str, Any]]:
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
