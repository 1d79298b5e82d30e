"""Pipeline-parallel training steps with times worked out one operation at a time, as what-if traces."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
Cost = Callable[[str, int, int, int, int], float]
"""(operation, step, dp rank, stage, microbatch) → seconds."""


def costs(operation: str, _step: int, _dp: int, _stage: int, _microbatch: int) -> float:
    """What everything takes where nothing is wrong."""
    return {"F": 1.0, "B": 2.0, "send": 0.25}.get(operation, 0.5)


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The order of a stage's computations."""
    first = min(stages - stage, microbatches)
    order = [("F", m) for m in range(first)]
    for m in range(microbatches):
        order.append(("B", m))
        if first + m < microbatches:
            order.append(("F", first + m))
    return order


Order = Callable[[int, int, int], Sequence[tuple[str, int] | tuple[str, int, int]]]
"""(stage, stages, microbatches) → ("F" or "B", microbatch[, chunk of the whole model; else the stage])."""


def one_chunk_after_another(stage: int, stages: int, microbatches: int) -> list[tuple[str, int, int]]:
    """Two chunks on every stage: all microbatches through one chunk, then through the next, and back."""
    forward = [("F", m, chunk) for chunk in (stage, stage + stages) for m in range(microbatches)]
    return forward + [("B", m, chunk) for chunk in (stage + stages, stage) for m in range(microbatches)]


@dataclass(frozen=True)
class Kind:
    """How a job trains."""

    dp: int = 1
    pp: int = 1
    chunks: int = 1
    """Of the model, on each stage."""
    overlapped: bool = False
    """Whether a chunk's gradients are reduced while others still compute."""
    empty_transfers: bool = False
    """Whether the first and last chunk of the model record transfers of no duration, with nobody."""


def pipeline_job(
    *,
    dp: int = 1,
    pp: int = 1,
    chunks: int = 1,
    microbatches: int = 4,
    steps: Sequence[int] = (0,),
    cost: Cost = costs,
    order: Order = one_f_one_b,
    orders: Mapping[int, Order] | None = None,
    overlapped: bool = False,
    empty_transfers: bool = False,
) -> list[Row]:
    """Every operation of the job; a rank is dp · stages + stage. Data-parallel ranks in `orders` have one of their own.

    Costs are asked for with the chunk in place of the stage.
    """
    kind = Kind(dp, pp, chunks, overlapped, empty_transfers)
    placed = {
        (rank, stage): [(*one, stage)[:3] for one in (orders or {}).get(rank, order)(stage, pp, microbatches)]
        for rank in range(dp)
        for stage in range(pp)
    }
    return [row for step in steps for row in _Step(step, kind, cost, placed).rows()]


class _Step:
    def __init__(
        self, step: int, kind: Kind, cost: Cost, order: Mapping[tuple[int, int], list[tuple[str, int, int]]]
    ) -> None:
        self.step, self.kind, self.cost, self.order = step, kind, cost, order
        self.dp, self.pp = kind.dp, kind.pp
        self.took = cache(self._took)

    def _took(self, dp: int, stage: int, place: int) -> tuple[float, float]:
        """Begin and end of the place-th computation of a worker."""
        kind, microbatch, chunk = self.order[dp, stage][place]
        ready = max(self.took(dp, stage, place - 1)[1] if place else 0.0, self.gathered(chunk // self.pp))
        if self.exists(source := self.source(kind, chunk)):
            ready = max(ready, self.arrived(kind, dp, source, microbatch))
        return ready, ready + self.cost(kind, self.step, dp, chunk, microbatch)

    def exists(self, chunk: int) -> bool:
        return 0 <= chunk < self.pp * self.kind.chunks

    @staticmethod
    def source(kind: str, chunk: int) -> int:
        return chunk - 1 if kind == "F" else chunk + 1

    def done(self, kind: str, dp: int, chunk: int, microbatch: int) -> float:
        stage = chunk % self.pp
        return self.took(dp, stage, self.order[dp, stage].index((kind, microbatch, chunk)))[1]

    def posted(self, kind: str, dp: int, chunk: int, microbatch: int) -> float:
        """When a worker can begin to receive: after its last computation of that kind."""
        stage = chunk % self.pp
        place = self.order[dp, stage].index((kind, microbatch, chunk))
        before = [at for at in range(place) if self.order[dp, stage][at][0] == kind]
        if before:
            return self.took(dp, stage, before[-1])[1]
        return self.took(dp, stage, place - 2)[1] if kind == "B" and place >= 2 else 0.0

    def arrived(self, kind: str, dp: int, source: int, microbatch: int) -> float:
        """When what a chunk computed has come to the next one."""
        target = source + 1 if kind == "F" else source - 1
        begin = max(self.done(kind, dp, source, microbatch), self.posted(kind, dp, target, microbatch))
        return begin + self.cost("send", self.step, dp, source, microbatch)

    def gathered(self, chunk: int) -> float:
        """When a stage's chunk has its parameters."""
        several = range(chunk + 1) if self.dp > 1 else ()
        return float(sum(self.cost("gather", self.step, 0, one, 0) for one in several))

    def computed(self, stage: int) -> float:
        """When all data-parallel ranks have computed."""
        return max(self.took(dp, stage, len(self.order[dp, stage]) - 1)[1] for dp in range(self.dp))

    def ready(self, dp: int, stage: int, chunk: int) -> float:
        """When a worker has the gradients of a chunk and begins to reduce them."""
        order = self.order[dp, stage]
        backward = [at for at, (kind, _, of) in enumerate(order) if kind == "B" and of // self.pp == chunk]
        return self.took(dp, stage, backward[-1] if self.kind.overlapped else len(order) - 1)[1]

    def scatters(self, stage: int) -> list[tuple[int, float]]:
        """(chunk, end) of every reduction of gradients."""
        result: list[tuple[int, float]] = []
        for chunk in reversed(range(self.kind.chunks)) if self.dp > 1 else ():
            ready = [self.ready(dp, stage, chunk) for dp in range(self.dp)]
            begin = max(*ready, *(end for _, end in result[-1:]))
            result.append((chunk, begin + self.cost("scatter", self.step, 0, chunk * self.pp + stage, 0)))
        return result

    def separated(self, stage: int) -> tuple[float, float]:
        """Begin and end of what is reduced after the last computation, where the rest was reduced meanwhile."""
        begin = max([self.computed(stage), *(end for _, end in self.scatters(stage))])
        if not (self.kind.overlapped and self.dp > 1):
            return begin, begin
        return begin, begin + self.cost("separate", self.step, 0, stage, 0)

    def rows(self) -> list[Row]:
        clipped = max(self.separated(stage)[1] for stage in range(self.pp)) + self.cost("clip", self.step, 0, 0, 0)
        return [row for dp in range(self.dp) for stage in range(self.pp) for row in self._worker(dp, stage, clipped)]

    def _worker(self, dp: int, stage: int, clipped: float) -> list[Row]:
        at = {"dp_rank": dp, "stage": stage, "rank": dp * self.pp + stage, "step": self.step}
        result: list[Row] = []
        turns: dict[str, int] = {}

        def add(optype: str, begin: float, end: float, **more: int) -> None:
            seq = turns[optype] = turns.get(optype, -1) + 1
            row = {**at, "optype": optype, "start_ts": begin, "duration": end - begin, "seq_id": seq}
            result.append({**row, "mc": -1, "gmc": -1, "mb_id": -1, **more})

        for chunk in range(self.kind.chunks if self.dp > 1 else 0):
            add("params-all-gather", self.gathered(chunk - 1) if chunk else 0.0, self.gathered(chunk), mc=chunk)
        names = {"F": "forward", "B": "backward"}
        for place, (kind, microbatch, chunk) in enumerate(self.order[dp, stage]):
            begin, end = self.took(dp, stage, place)
            source = self.source(kind, chunk)
            target = 2 * chunk - source
            if self.exists(source):
                arrived = self.arrived(kind, dp, source, microbatch)
                add(f"{names[kind]}-recv", self.posted(kind, dp, chunk, microbatch), arrived)
            elif self.kind.empty_transfers:
                add(f"{names[kind]}-recv", *[self.posted(kind, dp, chunk, microbatch)] * 2)
            add(f"{names[kind]}-compute", begin, end, mc=chunk // self.pp, gmc=chunk, mb_id=microbatch)
            if self.exists(target):
                add(f"{names[kind]}-send", end, self.arrived(kind, dp, chunk, microbatch))
            elif self.kind.empty_transfers:
                add(f"{names[kind]}-send", end, end)
        before = 0.0
        for chunk, end in self.scatters(stage):
            add("grads-reduce-scatter", max(before, self.ready(dp, stage, chunk)), end, mc=chunk)
            before = end
        begin, end = self.separated(stage)
        if end > begin:
            add("separate-grads-all-reduce", begin, end)
        add("optimizer-clip-main-grad", end, clipped)
        add("optimizer", clipped, clipped + self.cost("optimizer", self.step, dp, stage, 0))
        return result


def written(folder: Path, rows: Sequence[Row]) -> Path:
    """The rows as a trace file."""
    path = folder / "trace-job.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def recorded_step(rows: Sequence[Row], step: int = 0) -> float:
    """How long a step took, seconds."""
    own = [row for row in rows if row["step"] == step]
    return float(max(row["start_ts"] + row["duration"] for row in own) - min(row["start_ts"] for row in own))
