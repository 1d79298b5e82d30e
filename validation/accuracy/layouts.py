"""How a simulated job's ranks are placed: parallel dimensions, hosts and process groups."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Kind = Literal["dp", "3d", "fsdp", "moe"]

RANKS_PER_HOST: Final = 8
LONGEST_RANK_LIST: Final = 30
"""PyTorch writes no more ranks of a process group than these."""


@dataclass(frozen=True)
class Group:
    """A process group, as every rank of the job names it."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def rank_list(self) -> str:
        """The ranks as the profiler writes them beside a collective."""
        if len(self.ranks) <= LONGEST_RANK_LIST:
            return str(list(self.ranks))
        return f"[{', '.join(map(str, self.ranks[:LONGEST_RANK_LIST]))}, ...]"


@dataclass(frozen=True)
class JobLayout:
    """The shape of a job. Ranks are numbered as Megatron does: tp fastest, then dp, then pp."""

    kind: Kind
    dp: int
    pp: int = 1
    tp: int = 1
    microbatches: int = 1
    host_share: float = 0.25
    """What the host needs to issue an operation, as a share of the operation's time on the device."""
    recomputes: bool = False
    """Whether the backward pass runs each layer's forward kernels again (activation checkpointing)."""
    graphed: bool = False
    """Whether one launch issues all kernels of a step (a CUDA graph)."""
    accumulates: int = 1
    """Forward and backward passes of a step; gradients are reduced in the last one's backward."""
    reads_loss: int = 1
    """Steps from one read of the loss, for which the host waits (`loss.item()`), to the next; 0: it never does."""
    copies_loss: bool = False
    """Whether every step's loss is copied to the host without anybody waiting for it (`non_blocking=True`)."""

    def __post_init__(self) -> None:
        if min(self.dp, self.pp, self.tp, self.microbatches, self.accumulates) < 1:
            raise ValueError(f"sizes of a layout start at 1: {self}")
        if self.kind != "3d" and (self.pp, self.tp, self.microbatches) != (1, 1, 1):
            raise ValueError(f"only a 3d layout has pipeline stages, tensor parallel ranks and microbatches: {self}")
        if self.kind != "dp" and (self.recomputes or self.graphed or self.accumulates > 1):
            raise ValueError(f"only a dp layout recomputes, runs as a graph or accumulates gradients: {self}")
        if self.copies_loss and self.reads_loss:
            raise ValueError(f"a loss is read, or copied without a wait: {self}")

    @property
    def runs_ahead(self) -> bool:
        """Whether the host goes on to the next step while its device is still busy with this one."""
        return self.reads_loss != 1

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.dp * self.pp * self.tp

    @property
    def ranks_per_stage(self) -> int:
        """A stage's ranks are contiguous."""
        return self.dp * self.tp

    def rank_at(self, stage: int, dp: int, tp: int) -> int:
        """The rank of a place."""
        if not (0 <= stage < self.pp and 0 <= dp < self.dp and 0 <= tp < self.tp):
            raise ValueError(f"no rank at stage {stage}, dp {dp}, tp {tp} of {self}")
        return stage * self.ranks_per_stage + dp * self.tp + tp

    def stage_ranks(self, stage: int) -> range:
        """The ranks of one pipeline stage."""
        if not 0 <= stage < self.pp:
            raise ValueError(f"no stage {stage} in {self}")
        return range(stage * self.ranks_per_stage, (stage + 1) * self.ranks_per_stage)

    def place(self, rank: int) -> tuple[int, int]:
        """(stage, position among the stage's ranks)."""
        if not 0 <= rank < self.ranks:
            raise ValueError(f"no rank {rank} in {self}")
        return divmod(rank, self.ranks_per_stage)

    def host(self, rank: int) -> str:
        """The name of the host a rank runs on."""
        return f"node{rank // RANKS_PER_HOST}"

    def host_ranks(self, host: str) -> range:
        """The ranks of one host."""
        number = int(host.removeprefix("node"))
        found = range(number * RANKS_PER_HOST, min((number + 1) * RANKS_PER_HOST, self.ranks))
        if not found:
            raise ValueError(f"no host {host} in {self}")
        return found

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts, in order of their ranks."""
        return tuple(dict.fromkeys(self.host(rank) for rank in range(self.ranks)))

    def dp_group(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the same part of the model."""
        stage, position = self.place(rank)
        return tuple(self.stage_ranks(stage)[position % self.tp :: self.tp])

    @cached_property
    def groups(self) -> "Groups":
        """All process groups of the job."""
        return _groups(self)


@dataclass(frozen=True)
class Groups:
    """The process groups; `of_rank` says which one a rank uses, by dimension: indices into `all`, or −1.

    Dimensions are world, dp, tp, pp, ep (experts), and of each edge of a pipeline `p2p N forward` and
    `p2p N backward`, where N is the stage before it.
    """

    all: tuple[Group, ...]
    of_rank: dict[str, Ints]


def p2p_dimension(edge: int, direction: str) -> str:
    """The dimension of the process groups between stages `edge` and `edge` + 1."""
    return f"p2p {edge} {direction}"


@lru_cache(maxsize=32)
def _groups(layout: JobLayout) -> Groups:
    ranks = np.arange(layout.ranks)
    grid = ranks.reshape(layout.pp, layout.dp, layout.tp)
    found = [Group("0", "default_pg", tuple(ranks.tolist()))]
    everybody = np.zeros(layout.ranks, np.int64)
    of_rank: dict[str, Ints] = {"world": everybody, "dp": everybody}
    if layout.kind == "moe":
        of_rank["ep"] = np.full(layout.ranks, len(found))
        found.append(Group("1", "EXPERT_MODEL_PARALLEL_GROUP", tuple(ranks.tolist())))
    if layout.kind != "3d":
        return Groups(tuple(found), of_rank)
    members = {
        "dp": ("DATA_PARALLEL_GROUP", np.moveaxis(grid, 1, -1).reshape(-1, layout.dp)),
        "tp": ("TENSOR_MODEL_PARALLEL_GROUP", grid.reshape(-1, layout.tp)),
        "pp": ("PIPELINE_MODEL_PARALLEL_GROUP", np.moveaxis(grid, 0, -1).reshape(-1, layout.pp)),
    }
    for edge in range(layout.pp - 1):
        for direction in ("forward", "backward"):
            pairs = np.moveaxis(grid[edge : edge + 2], 0, -1).reshape(-1, 2)
            members[p2p_dimension(edge, direction)] = (f"PIPELINE_P2P_{direction.upper()}_GROUP", pairs)
    for dimension, (description, rows) in members.items():
        of_rank[dimension] = np.full(layout.ranks, -1)
        for row in rows:
            of_rank[dimension][row] = len(found)
            found.append(Group(str(len(found)), description, tuple(row.tolist())))
    return Groups(tuple(found), of_rank)


AHEAD: Final = {
    "dp8 ahead": JobLayout("dp", 8, reads_loss=0),
    "dp64 ahead": JobLayout("dp", 64, reads_loss=0),
    "dp8 loss read every 4 steps": JobLayout("dp", 8, reads_loss=4),
    "dp8 loss copied": JobLayout("dp", 8, reads_loss=0, copies_loss=True),
    "dp8 graph ahead": JobLayout("dp", 8, host_share=0.0, graphed=True, reads_loss=0),
    "fsdp8 ahead": JobLayout("fsdp", 8, reads_loss=0),
    "dp8 accumulating": JobLayout("dp", 8, accumulates=4, reads_loss=0),
    "moe8 ahead": JobLayout("moe", 8, reads_loss=0),
    "3d64 ahead": JobLayout("3d", dp=4, pp=4, tp=4, microbatches=4, reads_loss=0),
    "dp8 slow hosts": JobLayout("dp", 8, host_share=1.1, reads_loss=0),
    "dp8 quick hosts": JobLayout("dp", 8, host_share=0.1, reads_loss=0),
}
"""Jobs whose hosts run ahead of their devices, as far as the launch queue lets them."""
STANDARD: Final = {
    **{f"dp{ranks}": JobLayout("dp", ranks) for ranks in (4, 8, 16, 64, 256, 1024)},
    "3d16": JobLayout("3d", dp=2, pp=4, tp=2, microbatches=6),
    "3d16 in 16 microbatches": JobLayout("3d", dp=2, pp=4, tp=2, microbatches=16),
    "3d64": JobLayout("3d", dp=4, pp=4, tp=4, microbatches=4),
    "3d64 in 16 microbatches": JobLayout("3d", dp=4, pp=4, tp=4, microbatches=16),
    "3d256": JobLayout("3d", dp=8, pp=8, tp=4, microbatches=8),
    **{f"fsdp{ranks}": JobLayout("fsdp", ranks) for ranks in (8, 64)},
    "dp8 recomputing": JobLayout("dp", 8, recomputes=True),
    "dp8 as CUDA graph": JobLayout("dp", 8, host_share=0.0, graphed=True),
    **AHEAD,
}
