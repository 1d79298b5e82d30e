"""What-if traces (the ByteDance StragglerAnalysis format): all workers of a job in one Parquet file.

A worker is one (dp rank, pipeline stage); its rank is the first of the ranks it stands for. Times are float32
seconds from each step's own zero, so steps are laid end to end on one clock.
"""

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from kair_engine.errors import InputError
from kair_engine.format import KINDS, SCHEMA, STAGES, STEP_SCOPE, STREAM_PREFIX, FragmentWriter
from kair_engine.model import FragmentInfo, Layout, Notice, StepTimes
from kair_engine.notices import notice
from kair_engine.readers.columns import Int64s, dictionary, nullable, occurrences
from kair_engine.readers.identity import MAX_RANKS
from kair_engine.readers.whatif_columns import WhatifOperations, read_columns, valid_operations
from kair_engine.readers.whatif_meta import read_sizes


def read_whatif(source: Path, out: Path) -> FragmentInfo:
    """Writes `source` as the fragment `out`: a row group per step.

    Raises NotATraceError where the Parquet file has other columns, InputError where it is damaged or empty,
    OSError when the disk is full.
    """
    table = read_columns(source)
    names, operations, bad = valid_operations(table)
    if not len(operations.rank):
        raise InputError(f"{source.name} holds no operations")
    sizes = read_sizes(source)
    operations = operations.take(np.lexsort((operations.start, operations.rank, operations.step)))
    builder = _TableBuilder(names, operations, sizes)
    with FragmentWriter(out) as writer:
        for step in builder.steps.tolist():
            writer.write(builder.table(step))
        info = _info(source, builder, operations, bad)
        writer.commit(msgspec.to_builtins(info, str_keys=True))
    return info


COMPUTATIONS = ("forward-compute", "backward-compute")


class _TableBuilder:
    """Makes the table of one step after another."""

    def __init__(self, names: list[str], operations: WhatifOperations, sizes: dict[str, int]) -> None:
        self.names = [*names, STEP_SCOPE]
        self.operations = operations
        workers = np.unique(np.stack([operations.rank, operations.stage, operations.dp_rank]), axis=1).T.tolist()
        self.pipeline_stage = {rank: stage for rank, stage, _ in workers}
        self.dp_rank = {rank: dp for rank, _, dp in workers}
        self.dp = sizes.get("dp_size") or max(self.dp_rank.values()) + 1
        self.pp = sizes.get("pp_size") or max(self.pipeline_stage.values()) + 1
        self.tp = sizes.get("tp_size")
        world_size = sizes.get("world_size") or _stride(sorted(self.dp_rank)) * self.dp * self.pp
        self.world_size = world_size if world_size <= MAX_RANKS else max(self.dp_rank) + 1
        self._rank_at = {(dp, stage): rank for rank, stage, dp in workers}
        kinds, stages, lanes = zip(*map(classify, names), strict=True)
        self._kind, self._stage = np.array(kinds), np.array(stages)
        self._lanes = sorted(set(lanes))
        self._lane = np.array([self._lanes.index(lane) for lane in lanes])
        self._computing = [at for at, name in enumerate(names) if name in COMPUTATIONS]
        self._group_of: dict[tuple[int, int, int], tuple[str | None, int]] = {}
        self.steps, first = np.unique(operations.step, return_index=True)
        self._rows_of = dict(zip(self.steps.tolist(), pairwise([*first.tolist(), len(operations.step)]), strict=True))
        self.step_offsets = self._offsets()
        self.scopes: list[tuple[int, int, int, int, int]] = []
        """(rank, step, begin, duration, operations) of every step written."""

    def _offsets(self) -> dict[int, int]:
        """The clock time of each step's zero: where the steps before it ended on all ranks."""
        offsets, clock = {}, 0
        for step in self.steps.tolist():
            rows = self._of_step(step)
            offsets[step] = clock - int(rows.start.min())
            clock = offsets[step] + int((rows.start + rows.duration).max())
        return offsets

    def _of_step(self, step: int) -> WhatifOperations:
        begin, end = self._rows_of[step]
        return self.operations.take(slice(begin, end))

    def table(self, step: int) -> pa.Table:
        """The step's rows on all ranks, each rank's scope row among them."""
        rows = self._of_step(step)
        start = rows.start + self.step_offsets[step]
        groups, group, sequence, peer = self._communication(rows)
        columns = {
            "rank": rows.rank,
            "lane": self._lane[rows.operator],
            "name": rows.operator,
            "kind": self._kind[rows.operator],
            "stage": self._stage[rows.operator],
            "start": start,
            "duration": rows.duration,
            "group": group,
            "sequence": sequence,
            "peer": peer,
            "microbatch": rows.mb_id,
            "chunk": self._chunk(rows),
        }
        columns = self._with_scopes(columns, step)
        order = np.lexsort((-columns["duration"], columns["start"], columns["lane"], columns["rank"]))
        columns = {name: values[order] for name, values in columns.items()}
        return self._arrow(columns, groups, step)

    def _chunk(self, rows: WhatifOperations) -> Int64s:
        """Of computations the chunk of the whole model, even where only the stage's is given; of others as given."""
        computes = np.isin(rows.operator, self._computing) & (rows.mc >= 0)
        of_stage = np.where(computes, rows.mc * self.pp + rows.stage, rows.mc)
        return np.asarray(np.where(rows.gmc >= 0, rows.gmc, of_stage))

    def _with_scopes(self, columns: dict[str, Int64s], step: int) -> dict[str, Int64s]:
        compute = self._lanes.index(f"{STREAM_PREFIX}compute") if f"{STREAM_PREFIX}compute" in self._lanes else 0
        # Rows are in the order of their ranks.
        ranks, first, counts = np.unique(columns["rank"], return_index=True, return_counts=True)
        begin = np.minimum.reduceat(columns["start"], first)
        duration = np.maximum.reduceat(columns["start"] + columns["duration"], first) - begin
        for scope in zip(ranks.tolist(), begin.tolist(), duration.tolist(), counts.tolist(), strict=True):
            self.scopes.append((scope[0], step, *scope[1:]))
        scopes = {name: np.full(len(ranks), -1) for name in columns}
        scopes |= {"rank": ranks, "start": begin, "duration": duration}
        scopes |= {
            name: np.full(len(ranks), value)
            for name, value in (("lane", compute), ("name", len(self.names) - 1), ("kind", KINDS.index("scope")))
        }
        return {name: np.concatenate([values, scopes[name]]) for name, values in columns.items()}

    def _communication(self, rows: WhatifOperations) -> tuple[list[str], Int64s, Int64s, Int64s]:
        """Group names, and for every row its group, its number in it, and the peer of a send or receive."""
        groups: dict[str, int] = {}
        group, sequence, peer = (np.full(len(rows.rank), -1) for _ in range(3))
        communicating = np.flatnonzero(self._kind[rows.operator] != KINDS.index("compute"))
        place = rows.dp_rank[communicating] * (int(rows.stage.max(initial=0)) + 1) + rows.stage[communicating]
        _, first, alike = np.unique(
            place * len(self.names) + rows.operator[communicating], return_index=True, return_inverse=True
        )
        # A group and a peer for each operation type of each worker; then for all of its operations.
        of_alike = np.full((2, len(first)), -1)
        for at, row in enumerate(communicating[first].tolist()):
            dp = int(rows.dp_rank[row])
            key = int(rows.operator[row]), dp, int(rows.stage[row])
            if key not in self._group_of:
                text, other = self._group(self.names[key[0]], dp, key[2])
                self._group_of[key] = text, -1 if other is None else self._rank_at.get((dp, other), -1)
            text, peer_rank = self._group_of[key]
            if text is not None:
                of_alike[:, at] = groups.setdefault(text, len(groups)), peer_rank
        group[communicating], peer[communicating] = of_alike[:, alike.reshape(-1)]
        transfers = np.isin(self._kind[rows.operator], [KINDS.index("send"), KINDS.index("recv")])
        sequence[transfers] = rows.seq_id[transfers]
        collective = np.flatnonzero(self._kind[rows.operator] == KINDS.index("collective"))
        # Numbered by operator and then by seq_id, alike on every member: a group's number is one call.
        order = rows.operator[collective] * (1 << 32) + rows.seq_id[collective]
        sequence[collective] = occurrences(
            group[collective], rows.rank[collective], np.zeros(len(collective), np.int64), order
        )
        return list(groups), group, sequence, peer

    def _group(self, name: str, dp: int, stage: int) -> tuple[str | None, int | None]:
        """The group an operation belongs to, and the pipeline stage at its other end."""
        forward = name.startswith("forward")
        if name.endswith("-send"):
            other = (stage + (1 if forward else -1)) % self.pp
            return f"pp dp={dp} {stage}→{other}", other
        if name.endswith("-recv"):
            other = (stage - (1 if forward else -1)) % self.pp
            return f"pp dp={dp} {other}→{stage}", other
        if name.startswith("embedding"):
            return f"embedding dp={dp}", None
        if name.startswith("layernorm"):
            # Within one worker: its members are not in the recording.
            return f"layernorm dp={dp} stage={stage}", None
        if name == "optimizer-clip-main-grad":
            return "world", None
        return (None, None) if name == "gc" else (f"dp stage={stage}", None)

    def _arrow(self, columns: dict[str, Int64s], groups: list[str], step: int) -> pa.Table:
        count = len(columns["rank"])
        key = columns["rank"] * len(self.names) + columns["name"]
        arrays = [
            pa.array(np.full(count, step, np.int32)),
            pa.array(columns["rank"].astype(np.int32)),
            dictionary(columns["lane"], self._lanes),
            dictionary(columns["name"], self.names),
            dictionary(columns["kind"], KINDS),
            dictionary(columns["stage"], STAGES),
            pa.array(occurrences(columns["stage"], key, columns["kind"], columns["start"]).astype(np.int32)),
            pa.array(columns["start"]),
            pa.array(columns["duration"]),
            dictionary(columns["group"], groups),
            nullable(columns["sequence"], pa.int64()),
            pa.nulls(count, pa.int64()),
            nullable(columns["peer"], pa.int32()),
            nullable(columns["microbatch"], pa.int32()),
            nullable(columns["chunk"], pa.int32()),
            pa.nulls(count, pa.int64()),
        ]
        return pa.table(arrays, schema=SCHEMA)


def classify(name: str) -> tuple[int, int, str]:
    """Indices into KINDS and STAGES, and the lane, of an operation type."""
    kind = "compute"
    if name.endswith(("-send", "-recv")):
        kind = name[-4:]
    elif name.endswith(("all-gather", "reduce-scatter", "all-reduce")) or name == "optimizer-clip-main-grad":
        kind = "collective"
    elif name == "gc":
        kind = "gc"
    stage = "forward"
    if name.startswith(("backward", "grads")):
        stage = "backward"
    elif name.startswith(("optimizer", "layernorm", "embedding", "separate")):
        stage = "optimizer"
    lane = "compute"
    if kind in ("send", "recv"):
        lane = f"pp-{name}"
    elif kind == "collective":
        lane = "dp"
    return KINDS.index(kind), STAGES.index(stage), f"{STREAM_PREFIX}{lane}"


def _stride(ranks: list[int]) -> int:
    """The ranks that one worker stands for, where the ranks themselves show it."""
    return int(np.gcd.reduce(ranks)) or 1 if len(ranks) > 1 else 1


def _info(source: Path, builder: _TableBuilder, operations: WhatifOperations, bad: int) -> FragmentInfo:
    rank, step, begin, duration, counts = zip(*sorted(builder.scopes), strict=True)
    warnings: list[Notice] = []
    if bad:
        text = f"{bad} rows of {source.name} have no valid time, rank or step, and are left out"
        warnings.append(notice("bad_events", text))
    return FragmentInfo(
        source=str(source),
        format="whatif",
        ranks=tuple(sorted(builder.dp_rank)),
        rank_known=True,
        world_size=builder.world_size,
        hosts={},
        device=None,
        has_device=True,
        absolute_time=False,
        whole_recording=False,
        operations=len(operations.rank),
        outside_steps=0,
        layout=Layout(builder.dp, builder.pp, builder.tp, builder.pipeline_stage, builder.dp_rank),
        step_times=StepTimes(rank, step, begin, duration, counts),
        warnings=tuple(warnings),
    )
