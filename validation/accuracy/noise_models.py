"""Draws healthy jobs under kinds of noise that real machines have and the simulator had not.

Each is data parallel: 120 operators of about 0.7 ms on a thread, in the backward pass an all-reduce four times, which
all ranks wait in. Devices differ by 0.5 % where the model says nothing else.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from table import EPOCH_NS

from kair_engine.trace.format import SCHEMA, STEP_SCOPE, write_fragment
from kair_engine.trace.model import Job, StepTimes, Trace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

OPERATORS, OPERATOR_NS = 120, 700_000.0
_FORWARD, _BACKWARD = 50, 60
_SYNCHRONISED_AFTER = (65, 80, 95, 109)
"""Operators after which the ranks meet."""
TRANSFER_NS = 500_000.0
SPREAD = 0.005
FITTED = Path(__file__).parent / "fitted_noise.json"
"""What validation/real/fit_noise.py fitted to the recordings."""
WARM_UP = 50
"""Steps before the first, so that what depends on earlier steps is in its usual state."""


@dataclass(frozen=True)
class Costs:
    """What the ranks' own work takes, ns, (steps × ranks × operators): the operators, and idle time before each."""

    work: Floats
    idle: Floats


Model = Callable[[Floats, np.random.Generator], Costs]
"""Noise on the ranks' undisturbed work."""


def healthy(model: str, ranks: int, steps: int, seed: int) -> Costs:
    """The costs of a job without any fault under one of MODELS."""
    rng = np.random.default_rng((seed, ranks, steps))
    spread = {"spread2": 0.02, "spread5": 0.05}.get(model, SPREAD)
    typical = OPERATOR_NS * rng.lognormal(0, 0.6, OPERATORS)
    device = np.exp(rng.normal(0, spread, ranks))
    return MODELS[model](np.broadcast_to(typical * device[:, None], (steps, ranks, OPERATORS)).copy(), rng)


def _usual(work: Floats, rng: np.random.Generator, sigma: float = 0.03) -> Floats:
    """Log-normal noise on every operator, and a rare one that takes three to ten times as long."""
    rare = rng.random(work.shape) < 0.0001
    return work * rng.lognormal(0, sigma, work.shape) * np.where(rare, rng.uniform(3, 10, work.shape), 1.0)


def _plain(work: Floats) -> Costs:
    return Costs(work, np.zeros_like(work))


def _log_normal(sigma: float) -> Model:
    return lambda work, rng: _plain(work * rng.lognormal(0, sigma, work.shape))


def _preempted(work: Floats, rng: np.random.Generator) -> Costs:
    hit = rng.random(work.shape) < 0.03
    return _plain(_usual(work, rng) + hit * rng.exponential(3e6, work.shape))


def _pareto(work: Floats, rng: np.random.Generator) -> Costs:
    return _plain(work * (1 + 0.1 * rng.pareto(1.8, work.shape)))


def autoregressive(steps: int, ranks: int, rho: float, sigma: float, rng: np.random.Generator) -> Floats:
    """(steps × ranks) normal values of deviation sigma whose neighbours correlate by rho."""
    drawn = rng.normal(0, sigma * np.sqrt(1 - rho**2), (steps + WARM_UP, ranks))
    for step in range(1, len(drawn)):
        drawn[step] += rho * drawn[step - 1]
    return drawn[WARM_UP:]


def _wobbling(rho: float, sigma: float) -> Model:
    def of(work: Floats, rng: np.random.Generator) -> Costs:
        speed = np.exp(autoregressive(*work.shape[:2], rho, sigma, rng))
        return _plain(_usual(work, rng) * speed[:, :, None])

    return of


def _burst(work: Floats, rng: np.random.Generator) -> Costs:
    steps, ranks = work.shape[:2]
    begun = rng.random((steps + 4, ranks)) < 0.03
    slow = np.any([begun[shift : shift + steps] for shift in range(1, 5)], axis=0)
    return _plain(_usual(work, rng) * np.where(slow, 1.25, 1.0)[:, :, None])


def _unequal(work: Floats, rng: np.random.Generator) -> Costs:
    """One rank varies ten times as much as the others; in the mean it is no slower."""
    noisy = int(rng.integers(work.shape[1]))
    result = _usual(work, rng)
    result[:, noisy] = work[:, noisy] * rng.lognormal(-(0.3**2) / 2, 0.3, work[:, noisy].shape)
    return _plain(result)


def _unequally_preempted(work: Floats, rng: np.random.Generator) -> Costs:
    noisy = int(rng.integers(work.shape[1]))
    result = _usual(work, rng)
    hit = rng.random(work[:, noisy].shape) < 0.003
    result[:, noisy] += hit * rng.exponential(3e6, hit.shape)
    return _plain(result)


def _in_pairs(work: Floats, rng: np.random.Generator) -> Costs:
    steps, ranks = work.shape[:2]
    shared = autoregressive(steps, (ranks + 1) // 2, 0.6, 0.05, rng)
    return _plain(_usual(work, rng) * np.exp(np.repeat(shared, 2, axis=1)[:, :ranks])[:, :, None])


def _uneven_lengths(work: Floats, rng: np.random.Generator) -> Costs:
    length = np.exp(rng.normal(0, 0.08, work.shape[:2]))
    result = _usual(work, rng)
    result[:, :, : _FORWARD + _BACKWARD] *= length[:, :, None]
    return _plain(result)


def _experts(work: Floats, rng: np.random.Generator) -> Costs:
    result = _usual(work, rng)
    result[:, :, ::3] *= rng.lognormal(0, 0.4, result[:, :, ::3].shape)
    return _plain(result)


def _idle(work: Floats, rng: np.random.Generator) -> Costs:
    return Costs(_usual(work, rng), 20_000 * rng.pareto(1.8, work.shape))


def _throttled(work: Floats, rng: np.random.Generator) -> Costs:
    """Each device's clock is 8 % down for about fifteen steps at a time, a quarter of the time."""
    steps, ranks = work.shape[:2]
    slow = rng.random(ranks) < 0.25
    speed = np.ones((steps + WARM_UP, ranks))
    for step in range(len(speed)):
        slow = np.where(slow, rng.random(ranks) >= 1 / 15, rng.random(ranks) < 1 / 45)
        speed[step] += 0.08 * slow
    return _plain(_usual(work, rng) * speed[WARM_UP:, :, None])


def _all_alike(work: Floats, rng: np.random.Generator) -> Costs:
    """Batches of other lengths in every step, the same on all ranks."""
    length = rng.lognormal(0, 0.3, len(work))
    result = _usual(work, rng)
    result[:, :, : _FORWARD + _BACKWARD] *= length[:, None, None]
    return _plain(result)


def _checkpoints(work: Floats, rng: np.random.Generator) -> Costs:
    """All ranks write a checkpoint every tenth step, which takes about as long as a step, on each a time of its own."""
    idle = np.zeros_like(work)
    idle[::10, :, -1] = OPERATORS * OPERATOR_NS * rng.lognormal(0, 0.2, idle[::10, :, -1].shape)
    return Costs(_usual(work, rng), idle)


def _evaluations(work: Floats, rng: np.random.Generator) -> Costs:
    """Every eighth step evaluates: nothing but the forward pass takes time."""
    result = _usual(work, rng)
    result[::8, :, _FORWARD:] *= 0.01
    return _plain(result)


@lru_cache(maxsize=1)
def _fitted() -> tuple[list[str], dict[str, Floats]]:
    """(the figures, by sort of recording one row of them per take)."""
    content = json.loads(FITTED.read_text(encoding="utf-8"))
    return content["figures"], {name: np.array(takes) for name, takes in content["takes"].items()}


def _recorded(sort: str) -> Model:
    """The noise of a recorded take, whichever: its figures, not its steps."""

    def of(work: Floats, rng: np.random.Generator) -> Costs:
        names, takes = _fitted()
        of_take = dict(zip(names, takes[sort][rng.integers(len(takes[sort]))].tolist(), strict=True))
        steps, ranks = work.shape[:2]
        sigma = of_take["sigma"] * np.exp(rng.normal(0, of_take["unequal"], ranks))
        beside = autoregressive(steps, ranks, of_take["rho"], 1.0, rng) * sigma
        far = rng.random((steps, ranks)) < of_take["rare"]
        for step in range(1, steps):
            far[step] |= far[step - 1] & (rng.random(ranks) < of_take["again"])
        beside = np.where(far, of_take["longer"], beside)
        beside += rng.normal(0, of_take["spread"], ranks) + rng.normal(0, of_take["common"], steps)[:, None]
        return _plain(_usual(work, rng) * np.exp(beside)[:, :, None])

    return of


MODELS: dict[str, Model] = {
    "usual": lambda work, rng: _plain(_usual(work, rng)),
    "logn30": _log_normal(0.3),
    "logn60": _log_normal(0.6),
    "preempt": _preempted,
    "pareto": _pareto,
    "ar5_3": _wobbling(0.5, 0.03),
    "ar8_10": _wobbling(0.8, 0.10),
    "burst": _burst,
    "hetero": _unequal,
    "hetero_pre": _unequally_preempted,
    "spread2": lambda work, rng: _plain(_usual(work, rng)),
    "spread5": lambda work, rng: _plain(_usual(work, rng)),
    "pairs": _in_pairs,
    "dynlen": _uneven_lengths,
    "moe": _experts,
    "hostgap": _idle,
    "throttle": _throttled,
    "lengths": _all_alike,
    "checkpoint": _checkpoints,
    "evaluation": _evaluations,
    "own_cores": _recorded("own cores"),
    "shared_cores": _recorded("shared cores"),
    "under_load": _recorded("under load"),
}


def write_job(costs: Costs, folder: Path) -> Trace:
    """Lets the job run, and writes what a profiler would have recorded of it. Raises OSError when the disk is full."""
    begin, arrival, met = let_run(costs)
    path = folder / "all-ranks.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    table = _table(costs, begin, arrival, met)
    write_fragment(path, [table], {"source": "simulated"})
    steps, ranks, _ = costs.work.shape
    job = _job(folder, begin, costs, steps, ranks)
    return Trace(job, (path,), job.steps)


def let_run(costs: Costs) -> tuple[Floats, Floats, Floats]:
    """(begin of operators (steps × ranks × operators), arrivals and ends of collectives (steps × collectives × …))."""
    steps, ranks, operators = costs.work.shape
    begin = np.empty(costs.work.shape)
    arrival = np.empty((steps, len(_SYNCHRONISED_AFTER), ranks))
    met = np.empty((steps, len(_SYNCHRONISED_AFTER)))
    now = np.zeros(ranks)
    for step in range(steps):
        at = 0
        for number, last in enumerate((*_SYNCHRONISED_AFTER, operators - 1)):
            part = slice(at, last + 1)
            took = costs.idle[step, :, part] + costs.work[step, :, part]
            ended = now[:, None] + np.cumsum(took, axis=1)
            begin[step, :, part] = ended - costs.work[step, :, part]
            now, at = ended[:, -1], last + 1
            if number < len(_SYNCHRONISED_AFTER):
                arrival[step, number] = now
                met[step, number] = now.max() + TRANSFER_NS
                now = np.full(ranks, met[step, number])
    return begin, arrival, met


def _table(costs: Costs, begin: Floats, arrival: Floats, met: Floats) -> pa.Table:
    steps, ranks, operators = costs.work.shape
    step_begin, step_end = _step_times(begin, costs)
    collectives = len(_SYNCHRONISED_AFTER)
    width = 1 + operators + collectives
    start = np.concatenate([step_begin[:, :, None], begin, arrival.transpose(0, 2, 1)], axis=2)
    waited = met[:, None, :] - arrival.transpose(0, 2, 1)
    duration = np.concatenate([(step_end - step_begin)[:, :, None], costs.work, waited], axis=2)
    order = np.argsort(start, axis=2, kind="stable")
    start, duration = (np.take_along_axis(one, order, axis=2).ravel() for one in (start, duration))
    names = [STEP_SCOPE, *(f"op{number:03}" for number in range(operators)), "all_reduce"]
    name = np.r_[0, 1 + np.arange(operators), np.full(collectives, operators + 1)][order].ravel()
    kinds = ["scope", "compute", "collective"]
    kind = np.r_[0, np.ones(operators, int), np.full(collectives, 2)][order].ravel()
    phases = ["forward", "backward", "optimizer"]
    of_operator = np.digitize(np.arange(operators), (_FORWARD, _FORWARD + _BACKWARD))
    phase = np.r_[-1, of_operator, np.ones(collectives, int)][order].ravel()
    occurrence = np.r_[np.zeros(1 + operators, int), np.arange(collectives)][order].ravel()
    cells = np.repeat(np.arange(steps * ranks), width)
    columns = {
        "step": pa.array(cells // ranks, pa.int32()),
        "rank": pa.array(cells % ranks, pa.int32()),
        "lane": _texts(np.zeros(len(cells), int), ["thread 1"]),
        "name": _texts(name, names),
        "kind": _texts(kind, kinds),
        "phase": _texts(phase, phases),
        "occurrence": pa.array(occurrence, pa.int32()),
        "start_ns": pa.array(np.rint(start).astype(np.int64) + EPOCH_NS),
        "duration_ns": pa.array(np.rint(duration).astype(np.int64)),
    }
    empty = {field.name: pa.nulls(len(cells), field.type) for field in SCHEMA if field.name not in columns}
    return pa.table([(columns | empty)[name] for name in SCHEMA.names], schema=SCHEMA)


def _texts(codes: Ints, texts: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32(), mask=codes < 0), pa.array(texts, pa.string()))


def _step_times(begin: Floats, costs: Costs) -> tuple[Floats, Floats]:
    """(steps × ranks) each: a step ends as the next one begins."""
    ended = begin[:, :, -1] + costs.work[:, :, -1]
    return np.concatenate([np.zeros((1, begin.shape[1])), ended[:-1]]), ended


def _job(folder: Path, begin: Floats, costs: Costs, steps: int, ranks: int) -> Job:
    step_begin, step_end = _step_times(begin, costs)
    rows = OPERATORS + len(_SYNCHRONISED_AFTER)
    return Job(
        name=folder.name,
        source=str(folder),
        format="kineto",
        world_size=ranks,
        ranks=tuple(range(ranks)),
        hosts={},
        layout=None,
        device=None,
        has_device=False,
        absolute_time=True,
        steps=tuple(range(steps)),
        step_times=StepTimes(
            rank=tuple(np.repeat(np.arange(ranks), steps).tolist()),
            step=tuple(range(steps)) * ranks,
            begin_ns=tuple((np.rint(step_begin.T).astype(np.int64) + EPOCH_NS).ravel().tolist()),
            duration_ns=tuple(np.rint((step_end - step_begin).T).astype(np.int64).ravel().tolist()),
            operations=(rows,) * (steps * ranks),
        ),
        operations=rows * steps * ranks,
        warnings=(),
    )
