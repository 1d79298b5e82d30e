"""Simulated jobs in which something that the engine would like to assume does not hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from costs import JobCosts, Noise, compute_slots, forward_slots
from device_operations import KERNELS
from fault_model import Effect, Fault, Pause, Scene
from layouts import JobLayout
from simulator import JobSpec, simulate
from table import write_table

from kair_engine.readers.kineto.collective_details import global_peers
from kair_engine.trace.format import SCHEMA, write_fragment
from kair_engine.trace.model import Trace

DP8 = JobLayout("dp", 8)
PIPELINE = JobLayout("3d", dp=2, pp=4, microbatches=4)
"""Two pipelines of four stages: ranks 0, 2, 4, 6 and 1, 3, 5, 7."""
Edit = Callable[[pl.DataFrame], pl.DataFrame]
"""Changes the operations table of a job; texts are plain there."""


def recorded(
    folder: Path,
    *faults: Fault,
    layout: JobLayout = DP8,
    steps: int = 10,
    seed: int = 1,
    noise: Noise | None = None,
    edits: Sequence[Edit] = (),
) -> Trace:
    """A simulated job whose operations table was changed afterwards."""
    spec = JobSpec(layout, steps, seed, faults, noise or Noise())
    trace = write_table(simulate([spec])[0], folder)
    if edits:
        texts = [name for name in SCHEMA.names if str(SCHEMA.field(name).type).startswith("dictionary")]
        table = pl.read_parquet(trace.fragments[0]).with_columns(pl.col(texts).cast(pl.String))
        for edit in edits:
            table = edit(table)
        table = table.sort("step", "rank", "lane", "start_ns", maintain_order=True)
        written = table.to_arrow().select(SCHEMA.names).cast(SCHEMA)
        write_fragment(trace.fragments[0], [written], {"source": "simulated"})
    return trace


def autotuned(table: pl.DataFrame) -> pl.DataFrame:
    """On rank 3 the library chose another kernel for every other of the GEMMs."""
    number = pl.col("start_ns").rank("ordinal").over("step", "rank", "name")
    chosen = (pl.col("rank") == 3) & pl.col("name").str.contains("gemm") & (number % 2 == 0)
    return table.with_columns(name=pl.when(chosen).then(pl.lit("sm90_another_gemm")).otherwise("name"))


def with_extra_kernels(table: pl.DataFrame) -> pl.DataFrame:
    """On rank 3 the last three eighths of every attention are a kernel of its own, which no other rank runs."""
    chosen = (pl.col("rank") == 3) & (pl.col("name") == KERNELS["attention"])
    own = (pl.col("duration_ns") / 1.6).cast(pl.Int64)
    rest = table.filter(chosen).with_columns(
        name=pl.lit("void rescale_kernel"), start_ns=pl.col("start_ns") + own, duration_ns=pl.col("duration_ns") - own
    )
    return pl.concat([table.with_columns(duration_ns=pl.when(chosen).then(own).otherwise("duration_ns")), rest])


def as_cuda_graph(table: pl.DataFrame) -> pl.DataFrame:
    """One launch for all kernels of a step."""
    launches, kernels = pl.col("name") == "cudaLaunchKernel", pl.col("lane").str.starts_with("stream")
    first = pl.col("correlation").filter(launches).min().over("step", "rank")
    table = table.with_columns(
        correlation=pl.when(kernels & (pl.col("kind") != "memory")).then(first).otherwise("correlation")
    )
    return table.filter(~launches | (pl.col("correlation") == first)).with_columns(
        name=pl.when(launches).then(pl.lit("cudaGraphLaunch")).otherwise("name")
    )


def with_ranks_as_peers(table: pl.DataFrame) -> pl.DataFrame:
    """PIPELINE's sends and receives in the group of the whole pipeline, their peers recorded as ranks of the job."""
    groups = {rank: f"{13 + rank % 2} {[stage * 2 + rank % 2 for stage in range(4)]}" for rank in range(8)}
    transfer = table["kind"].is_in(["send", "recv"])
    peer = table["peer"].to_list()
    for rank, group in groups.items():
        at = (transfer & (table["rank"] == rank)).arg_true().to_list()
        for row, other in zip(at, global_peers([peer[row] for row in at], group, rank, "places"), strict=True):
            peer[row] = other
    return table.with_columns(
        group=pl.when(transfer).then(pl.col("rank").replace_strict(groups)).otherwise("group"),
        group_seq=pl.when(transfer).then(None).otherwise("group_seq"),
        peer=pl.Series(peer, dtype=pl.Int32),
    )


@dataclass(frozen=True)
class MoreWork:
    """One rank's forward and backward kernels (of these labels; all without any) take longer, its optimizer not."""

    rank: int
    factor: float
    labels: tuple[str, ...] = ()

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        stage, position = costs.layout.place(self.rank)
        for slot in compute_slots(costs.program.stages[stage]):
            operation = costs.program.stages[stage][slot]
            if operation.phase != "optimizer" and (not self.labels or operation.label in self.labels):
                costs.device[stage][:, slot, position] *= self.factor
        return Effect()


@dataclass(frozen=True)
class PeriodicPause:
    """One rank's host stands still at the begin of some steps, for a share of the step."""

    rank: int
    steps: tuple[int, ...]
    share: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        stage, position = costs.layout.place(self.rank)
        slot = forward_slots(costs.program.stages[stage])[0]
        pauses = tuple(Pause(step, self.rank, slot, self.share * scene.step_ns) for step in self.steps)
        for pause in pauses:
            costs.before_launch[stage][pause.step, slot, position] += pause.duration_ns
        return Effect(pauses=pauses)


@dataclass(frozen=True)
class BufferRequests:
    """The profilers of some ranks ask for a buffer early in every step, which holds up a launch for so long."""

    ranks: tuple[int, ...]
    pause_ms: float
    every: int = 1
    """Steps; in those between it takes 1 ms."""

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        pauses = []
        lasts_ns = np.where(np.arange(costs.steps) % self.every == 0, self.pause_ms * 1e6, 1e6)
        for rank in self.ranks:
            stage, position = costs.layout.place(rank)
            slot = forward_slots(costs.program.stages[stage])[0]
            costs.before_launch[stage][:, slot, position] += lasts_ns
            pauses += [Pause(step, rank, slot, lasts, visible=True) for step, lasts in enumerate(lasts_ns.tolist())]
        return Effect(pauses=tuple(pauses))


def as_buffer_requests(table: pl.DataFrame) -> pl.DataFrame:
    """What the simulator records of a pause is the profiler's own work."""
    pause = pl.col("kind") == "gc"
    return table.with_columns(
        name=pl.when(pause).then(pl.lit("Activity Buffer Request")).otherwise("name"),
        kind=pl.when(pause).then(pl.lit("host")).otherwise("kind"),
    )
