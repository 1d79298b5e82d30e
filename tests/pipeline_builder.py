"""Pipeline-parallel training steps with times worked out one operation at a time, as what-if traces."""

from collections.abc import Callable, Sequence
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


def pipeline_job(
    *,
    dp: int = 1,
    pp: int = 1,
    microbatches: int = 4,
    steps: Sequence[int] = (0,),
    cost: Cost = costs,
    order: Callable[[int, int, int], list[tuple[str, int]]] = one_f_one_b,
) -> list[Row]:
    """Every operation of the job, without overlapped reduction; a rank is dp · stages + stage."""
    return [row for step in steps for row in _Step(step, dp, pp, microbatches, cost, order).rows()]


class _Step:
    def __init__(
        self, step: int, dp: int, pp: int, microbatches: int, cost: Cost, order: Callable[[int, int, int], Any]
    ) -> None:
        self.step, self.dp, self.pp, self.cost = step, dp, pp, cost
        self.order = {stage: order(stage, pp, microbatches) for stage in range(pp)}
        self.took = cache(self._took)

    def _seconds(self, operation: str, dp: int, stage: int, microbatch: int = 0) -> float:
        return self.cost(operation, self.step, dp, stage, microbatch)

    def _took(self, dp: int, stage: int, place: int) -> tuple[float, float]:
        """Begin and end of the place-th computation of a worker."""
        kind, microbatch = self.order[stage][place]
        ready = self.took(dp, stage, place - 1)[1] if place else self.gathered()
        source = stage - 1 if kind == "F" else stage + 1
        if 0 <= source < self.pp:
            ready = max(ready, self.arrived(kind, dp, source, stage, microbatch))
        return ready, ready + self._seconds(kind, dp, stage, microbatch)

    def done(self, kind: str, dp: int, stage: int, microbatch: int) -> float:
        return self.took(dp, stage, self.order[stage].index((kind, microbatch)))[1]

    def posted(self, kind: str, dp: int, stage: int, microbatch: int) -> float:
        """When a worker can begin to receive: after its last computation of that kind."""
        if microbatch:
            return self.done(kind, dp, stage, microbatch - 1)
        place = self.order[stage].index((kind, 0))
        return self.took(dp, stage, place - 2)[1] if kind == "B" and place >= 2 else 0.0

    def arrived(self, kind: str, dp: int, source: int, target: int, microbatch: int) -> float:
        begin = max(self.done(kind, dp, source, microbatch), self.posted(kind, dp, target, microbatch))
        return begin + self._seconds("send", dp, source, microbatch)

    def gathered(self) -> float:
        return self.cost("gather", self.step, 0, 0, 0) if self.dp > 1 else 0.0

    def computed(self, dp: int, stage: int) -> float:
        return self.took(dp, stage, len(self.order[stage]) - 1)[1]

    def rows(self) -> list[Row]:
        result: list[Row] = []
        reduced = {}
        for stage in range(self.pp):
            last = max(self.computed(dp, stage) for dp in range(self.dp))
            reduced[stage] = last + (self.cost("scatter", self.step, 0, stage, 0) if self.dp > 1 else 0.0)
        clipped = max(reduced.values()) + self.cost("clip", self.step, 0, 0, 0)
        for dp in range(self.dp):
            for stage in range(self.pp):
                result += self._worker(dp, stage, reduced[stage], clipped)
        return result

    def _worker(self, dp: int, stage: int, reduced: float, clipped: float) -> list[Row]:
        at = {"dp_rank": dp, "stage": stage, "rank": dp * self.pp + stage, "step": self.step}
        result: list[Row] = []
        turns: dict[str, int] = {}

        def add(optype: str, begin: float, end: float, **more: int) -> None:
            seq = turns[optype] = turns.get(optype, -1) + 1
            row = {**at, "optype": optype, "start_ts": begin, "duration": end - begin, "seq_id": seq}
            result.append({**row, "mc": -1, "gmc": -1, "mb_id": -1, **more})

        if self.dp > 1:
            add("params-all-gather", 0.0, self.gathered(), mc=0)
        names = {"F": "forward", "B": "backward"}
        for place, (kind, microbatch) in enumerate(self.order[stage]):
            begin, end = self.took(dp, stage, place)
            source, target = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
            if 0 <= source < self.pp:
                arrived = self.arrived(kind, dp, source, stage, microbatch)
                add(f"{names[kind]}-recv", self.posted(kind, dp, stage, microbatch), arrived)
            add(f"{names[kind]}-compute", begin, end, mc=0, gmc=stage, mb_id=microbatch)
            if 0 <= target < self.pp:
                add(f"{names[kind]}-send", end, self.arrived(kind, dp, stage, target, microbatch))
        computed = self.computed(dp, stage)
        if self.dp > 1:
            add("grads-reduce-scatter", computed, reduced, mc=0)
        add("optimizer-clip-main-grad", reduced, clipped)
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
