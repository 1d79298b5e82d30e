"""The operations of a job whose recording tells pipeline stages and operation types apart (what-if traces)."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.errors import UsageError
from kair_engine.loading import codes
from kair_engine.model import Trace

FORWARD, BACKWARD = "forward-compute", "backward-compute"
FORWARD_BACKWARD = (FORWARD, BACKWARD)
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER, SCATTER, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, GARBAGE = "optimizer-clip-main-grad", "optimizer", "gc"
TYPES = (
    *(FORWARD, BACKWARD, *TRANSFERS, GATHER, SCATTER, SEPARATE),
    *(LAYERNORM, EMBEDDING, CLIP, OPTIMIZER, GARBAGE),
)
COMMUNICATION = frozenset((*TRANSFERS, GATHER, SCATTER, SEPARATE, LAYERNORM, EMBEDDING, CLIP))
"""Types whose ideal is the median; of all others it is the mean [W]."""

_COLUMNS = ("step", "rank", "name", "start_ns", "duration_ns", "occurrence", "chunk", "microbatch")


@dataclass(frozen=True)
class PipelineRows:
    """Every operation of the chosen steps, sorted by worker-step, type, start.

    Times are ns from the begin of each operation's step. A worker is one pipeline stage of one data-parallel rank; a
    worker-step is one of its steps.
    """

    step: Ints
    """A code: a position in `steps`."""
    dp: Ints
    stage: Ints
    type: Ints
    """A position in TYPES."""
    turn: Ints
    """The n-th of its type in the worker-step."""
    chunk: Ints
    """Of the whole model (virtual stages counted in order); of gathers and scatters within the stage."""
    microbatch: Ints
    """NONE where the recording does not tell it."""
    start_ns: Floats
    end_ns: Floats
    worker_step: Ints
    steps: tuple[int, ...]
    dp_size: int
    pp_size: int
    unknown: tuple[str, ...]
    """Types that are none of TYPES; their operations are left out."""

    def __len__(self) -> int:
        return len(self.step)

    def of_type(self, *names: str) -> Ints:
        """The rows of these types."""
        return np.flatnonzero(np.isin(self.type, [TYPES.index(name) for name in names]))


def is_pipeline(trace: Trace) -> bool:
    """Whether the recording has operation types instead of operators."""
    return trace.job.format == "whatif"


def read_pipeline(trace: Trace) -> PipelineRows:
    """The chosen steps of a what-if trace. Raises UsageError where it tells no pipeline stages."""
    layout = trace.job.layout
    if layout is None:
        raise UsageError("the recording does not tell which pipeline stage a rank belongs to")
    frame = (
        trace.scan()
        .filter(pl.col("kind") != "scope", pl.col("step").is_in(list(trace.steps)))
        .select(*_COLUMNS, codes("name").alias("code"))
        .collect()
    )
    names = dict(frame.group_by("code").agg(pl.col("name").first().cast(pl.String)).iter_rows())
    code = frame["code"].to_numpy()
    type_of = np.full(max(names, default=0) + 1, NONE)
    for number, name in names.items():
        type_of[number] = TYPES.index(name) if name in TYPES else NONE
    kind = type_of[code]
    known = kind != NONE
    rank, step = frame["rank"].to_numpy()[known], frame["step"].to_numpy()[known]
    stage_of, dp_of = (_lookup(of, rank) for of in (layout.pipeline_stage, layout.dp_rank))
    start = frame["start_ns"].to_numpy()[known]
    duration = frame["duration_ns"].to_numpy()[known]
    turn = frame["occurrence"].to_numpy()[known]
    chunk, microbatch = (frame[name].fill_null(NONE).to_numpy()[known] for name in ("chunk", "microbatch"))
    steps, step_code = np.unique(step, return_inverse=True)
    origin = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(origin, step_code, start)
    begin = (start - origin[step_code]).astype(float)
    stage, dp = stage_of[rank], dp_of[rank]
    pp, dps = int(stage.max(initial=0)) + 1, int(dp.max(initial=0)) + 1
    # Without virtual stages a recording need not tell the chunk: it is the stage.
    computes = np.isin(kind[known], [TYPES.index(name) for name in FORWARD_BACKWARD])
    chunk = np.where(computes & (chunk == NONE), stage, chunk)
    worker_step = (step_code.astype(np.int64) * dps + dp) * pp + stage
    order = np.lexsort((turn, begin, kind[known], worker_step))
    return PipelineRows(
        step=step_code[order],
        dp=dp[order],
        stage=stage[order],
        type=kind[known][order],
        turn=turn[order].astype(np.int64),
        chunk=chunk[order].astype(np.int64),
        microbatch=microbatch[order].astype(np.int64),
        start_ns=begin[order],
        end_ns=(begin + duration)[order],
        worker_step=worker_step[order],
        steps=tuple(int(number) for number in steps),
        dp_size=dps,
        pp_size=pp,
        unknown=tuple(sorted(name for name in names.values() if name not in TYPES)),
    )


def _lookup(of_rank: dict[int, int], ranks: Ints) -> Ints:
    result = np.zeros(int(ranks.max(initial=0)) + 1, dtype=np.int64)
    for rank, value in of_rank.items():
        if rank < len(result):
            result[rank] = value
    return result
