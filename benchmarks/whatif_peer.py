"""The published what-if analyzer's algorithm, transcribed: one dependency model by operation names, taken from one rank
and step for all, and every scenario replayed operation by operation over arrays of (data-parallel rank × step).

Written from its description and source, without its DataFrames, so it is faster than the original; for jobs without
virtual stages whose gradients are reduced after the last computation.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
ACROSS = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")
MEDIAN = (*TRANSFERS, *ACROSS, "layernorm-grads-all-reduce", "embedding-grads-all-reduce")
Arrays = dict[str, np.ndarray]


@dataclass
class Model:
    """By operation name, `type_turn_stage`."""

    before: dict[str, list[str]]
    groups: list[list[str]]
    group_of: dict[str, int]
    start: Arrays
    """(steps × dp ranks)."""
    end: Arrays
    own: Arrays
    type_of: dict[str, str]
    stage_of: dict[str, int]
    stages: int


def read(path: Path) -> Model:
    """The dependency model and every operation's times."""
    frame = pl.read_parquet(path).with_columns(pl.col("optype").cast(pl.String), pl.col(pl.Float32).cast(pl.Float64))
    frame = frame.with_columns(
        op=pl.concat_str(pl.col("optype"), pl.lit("_"), pl.col("seq_id"), pl.lit("_"), pl.col("stage")),
        end_ts=pl.col("start_ts") + pl.col("duration"),
    ).sort("step", "dp_rank")
    steps, dps, stages = frame["step"].n_unique(), frame["dp_rank"].n_unique(), int(frame["stage"].max() or 0) + 1
    start, end, type_of, stage_of = {}, {}, {}, {}
    for (op,), rows in frame.group_by("op"):
        start[str(op)] = rows["start_ts"].to_numpy().reshape(steps, dps)
        end[str(op)] = rows["end_ts"].to_numpy().reshape(steps, dps)
        type_of[str(op)], stage_of[str(op)] = rows["optype"][0], rows["stage"][0]
    one = frame.filter((pl.col("dp_rank") == 0) & (pl.col("step") == frame["step"].min()))
    before: dict[str, list[str]] = {op: [] for op in start}
    groups: list[list[str]] = []
    for stage in range(stages):
        _of_stage(before, one.filter(pl.col("stage") == stage).sort("start_ts", "seq_id", "optype"), stage, stages)
    for op, kind in type_of.items():
        if kind in {"forward-send", "backward-send"}:
            turn, stage = op.split("_")[1:]
            other = int(stage) + (1 if kind == "forward-send" else -1)
            groups.append([op, f"{kind.replace('send', 'recv')}_{turn}_{other}"])
        elif kind in {"params-all-gather", "grads-reduce-scatter"}:
            groups.append([op])
    ends = [op for op, kind in type_of.items() if kind == "embedding-grads-all-reduce"]
    groups += [ends] if ends else []
    groups.append([op for op, kind in type_of.items() if kind == "optimizer-clip-main-grad"])
    group_of = {op: number for number, group in enumerate(groups) for op in group}
    model = Model(before, groups, group_of, start, end, {}, type_of, stage_of, stages)
    for op, begin in start.items():
        model.own[op] = end[op] - begin
    for group in groups:
        latest = np.maximum.reduce([start[op] for op in group])
        if type_of[group[0]] in ACROSS:
            latest = latest.max(axis=1, keepdims=True)
        for op in group:
            own = end[op] - latest
            model.own[op] = np.where(own <= -0.01, 0.0, own)
    return model


def _of_stage(before: dict[str, list[str]], rows: pl.DataFrame, stage: int, stages: int) -> None:
    ops, kinds = rows["op"].to_list(), rows["optype"].to_list()
    by_kind: dict[str, list[str]] = {}
    for op, kind in zip(ops, kinds, strict=True):
        by_kind.setdefault(kind, []).append(op)
    computes = [op for op, kind in zip(ops, kinds, strict=True) if kind.endswith("compute")]
    chains = [computes, *(by_kind.get(kind, []) for kind in TRANSFERS)]
    chains.append([*by_kind.get("params-all-gather", []), *by_kind.get("grads-reduce-scatter", [])])
    closing = ("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter")
    tail = [op for kind in (*closing, "optimizer-clip-main-grad", "optimizer") for op in by_kind.get(kind, [])]
    chains.append([computes[-1], *tail])
    for chain in chains:
        for first, second in pairwise(chain):
            before[second].append(first)
    for gather in by_kind.get("params-all-gather", []):
        before[computes[0]].append(gather)
    for direction in ("forward", "backward"):
        for turn, receive in enumerate(by_kind.get(f"{direction}-recv", [])):
            before[f"{direction}-compute_{turn}_{stage}"].append(receive)
            if turn:
                before[receive].append(f"{direction}-compute_{turn - 1}_{stage}")
        for turn, send in enumerate(by_kind.get(f"{direction}-send", [])):
            before[send].append(f"{direction}-compute_{turn}_{stage}")
    first = next(at for at, op in enumerate(computes) if op.startswith("backward"))
    if first >= 2 and stages > 1:
        for kind in ("backward-send", "backward-recv"):
            if kind in by_kind:
                before[by_kind[kind][0]].append(computes[first - 2])


def simulate(model: Model, own: Arrays) -> np.ndarray:
    """Step times, one operation after another in topological order."""
    waiting = {op: len(of) for op, of in model.before.items()}
    after: dict[str, list[str]] = {op: [] for op in model.before}
    for op, of in model.before.items():
        for earlier in of:
            after[earlier].append(op)
    begun: Arrays = {}
    ended: Arrays = {}
    arrived = [0] * len(model.groups)
    queue = deque(op for op, count in waiting.items() if not count)
    while queue:
        op = queue.popleft()
        of = model.before[op]
        at = ended[of[0]] if of else np.zeros_like(own[op])
        for earlier in of[1:]:
            at = np.maximum(at, ended[earlier])
        begun[op] = at
        finished: Iterable[str] = (op,)
        number = model.group_of.get(op)
        if number is None:
            ended[op] = at + own[op]
        else:
            group = model.groups[number]
            arrived[number] += 1
            if arrived[number] < len(group):
                continue
            together = np.maximum.reduce([begun[one] for one in group])
            if model.type_of[op] in ACROSS:
                together = np.broadcast_to(together.max(axis=1, keepdims=True), together.shape)
            for one in group:
                ended[one] = together + own[one]
            finished = group
        for one in finished:
            for later in after[one]:
                waiting[later] -= 1
                if not waiting[later]:
                    queue.append(later)
    last = [ended[op] for op, kind in model.type_of.items() if kind == "optimizer"]
    return np.asarray(np.maximum.reduce(last).max(axis=1))


def analyze(path: Path) -> dict[str, float]:
    """S and its attributions, each scenario replayed by itself."""
    model = read(path)
    ideal = {}
    for kind in set(model.type_of.values()):
        ops = [op for op, of in model.type_of.items() if of == kind]
        values = np.concatenate([model.own[op].ravel() for op in ops])
        value = np.median(values) if kind in MEDIAN else values.mean()
        ideal |= {op: np.full_like(model.own[op], value) for op in ops}
    best = simulate(model, ideal).mean()
    result = {"S": float(simulate(model, model.own).mean() / best)}
    merged = {kind: f"{kind.split('-')[0]}-pp-comm" for kind in TRANSFERS}
    for name in {merged.get(kind, kind) for kind in model.type_of.values()}:
        kept = {op for op, kind in model.type_of.items() if merged.get(kind, kind) == name}
        result[name] = float(simulate(model, ideal | {op: model.own[op] for op in kept}).mean() / best)
    for stage in range(model.stages):
        kept = {op for op, of in model.stage_of.items() if of == stage}
        result[f"stage {stage}"] = float(simulate(model, ideal | {op: model.own[op] for op in kept}).mean() / best)
    for dp in range(next(iter(model.own.values())).shape[1]):
        own = {op: np.where(np.arange(values.shape[1]) == dp, model.own[op], values) for op, values in ideal.items()}
        result[f"dp {dp}"] = float(simulate(model, own).mean() / best)
    return result
