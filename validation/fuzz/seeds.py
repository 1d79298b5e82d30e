"""Small recordings that hostile inputs are made from: of hosts, of simulated devices, of operation types."""

import gzip
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_traces"
# The simulator stands in a folder of its own.
sys.path.append(str(ROOT / "validation" / "accuracy"))

Content = dict[str, Any]
STEPS = 4
_KEPT = 0.08
"""Of the operations that are no communication: small recordings are read in milliseconds."""
_TELLING = ("ProfilerStep", "gloo", "c10d", "record_param", "nccl", "Optimizer", "enumerate", "Memcpy", "process_")


@dataclass(frozen=True)
class Seed:
    """The files of one job: text by name."""

    name: str
    files: Mapping[str, bytes]

    def contents(self) -> dict[str, Content]:
        """The recordings as JSON, of one's own to change."""
        return {name: json.loads(text) for name, text in self.files.items()}


@cache
def kineto_seeds() -> tuple[Seed, ...]:
    """Jobs on hosts (gloo; one with a pipeline, one with groups of two dimensions) and on devices (NCCL)."""
    sampled = (
        _of_sample("slow_operator", ranks=3),
        _of_sample("pipeline_slow_operator", ranks=6, steps=2),
        _of_sample("two_hosts_healthy", ranks=4, steps=2),
    )
    return (*sampled, *_simulated())


@cache
def whatif_seed() -> pa.Table:
    """A pipeline of two stages and two data-parallel ranks, four steps of four microbatches."""
    rows = [row for step in range(STEPS) for dp in (0, 1) for stage in (0, 1) for row in _worker(step, dp, stage)]
    return pa.Table.from_pylist(rows)


def _of_sample(name: str, *, ranks: int, steps: int = STEPS) -> Seed:
    files = {}
    for path in sorted((SAMPLES / name).glob("*.gz"))[:ranks]:
        found: Content = json.loads(gzip.decompress(path.read_bytes()))
        files[path.name.removesuffix(".gz")] = json.dumps(_thinned(found, steps)).encode()
    return Seed(name, files)


def _simulated() -> tuple[Seed, ...]:
    from compute_faults import SlowGpu
    from kineto import write_kineto
    from layouts import JobLayout
    from simulator import JobSpec, simulate

    found = []
    # A step of the second has five times the events: two of them are as many as a case needs.
    for layout, steps in ((JobLayout("dp", 4), STEPS), (JobLayout("3d", dp=2, pp=2, tp=2, microbatches=2), 2)):
        (recording,) = simulate([JobSpec(layout, steps, 0, (SlowGpu(1, 1.5),))])
        with TemporaryDirectory() as folder:
            paths = write_kineto(recording, Path(folder), compress=False)
            texts = {path.name: json.dumps(_thinned(json.loads(path.read_bytes()), steps)).encode() for path in paths}
        found.append(Seed(f"simulated_{layout.kind}", texts))
    return tuple(found)


def _thinned(content: Content, steps: int) -> Content:
    """Its first steps, all of their communication and some of what else there is."""
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    marks = sorted(event["ts"] for event in events if event["name"].startswith("ProfilerStep"))
    until = marks[steps] if len(marks) > steps else float("inf")
    chance = random.Random(0)
    content["traceEvents"] = [
        event
        for event in content["traceEvents"]
        if event.get("ts", 0) < until
        and event.get("cat") not in ("fwdbwd", "ac2g")
        and (any(word in event.get("name", "") for word in _TELLING) or chance.random() < _KEPT)
    ]
    return content


def _worker(step: int, dp: int, stage: int) -> list[dict[str, Any]]:
    """One worker's operations of a step, which is short and in no particular order of a schedule."""
    place = {"step": 10 + step, "dp_rank": dp, "stage": stage, "rank": 2 * (2 * stage + dp)}
    slow = 1.5 if (dp, stage) == (1, 0) else 1.0
    rows = []

    def add(optype: str, at: float, lasted: float, **more: int) -> None:
        numbers = {"seq_id": 0, "mc": -1, "gmc": -1, "mb_id": -1, **more}
        rows.append({"optype": optype, "start_ts": at, "duration": lasted, **place, **numbers})

    add("params-all-gather", 0.0, 0.5, mc=0)
    for number in range(4):
        add("forward-compute", 1.0 + number * slow, slow, mc=0, gmc=stage, mb_id=number)
        add("forward-send" if stage == 0 else "forward-recv", 2.0 + number, 0.1, seq_id=number)
        add("backward-compute", 8.0 + number * slow, slow, mc=0, gmc=stage, mb_id=number)
        add("backward-recv" if stage == 0 else "backward-send", 9.0 + number, 0.1, seq_id=number)
    add("gc", 16.0, 0.1)
    add("grads-reduce-scatter", 17.0, 0.5)
    add("optimizer-clip-main-grad", 18.0, 0.5)
    add("optimizer", 19.0, 0.5)
    return rows
