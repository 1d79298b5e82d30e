"""The history of steps as arrays, and what of it ranks are compared in.

The columns, in µs: `step`, `self` (the step without the waiting in collectives), `waited`, the phases `forward`,
`backward`, `optimizer` and `input`, `gc`, `cpu` (the training thread computed) and `delay` (it was ready and had no
core); `samples`, that the rank took; and `device`, its own time there, which is `self` if all ranks have it. What a
rank did not record is NaN, or 0 if a version or a job never records it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import CLASSES
from kair_engine.localize.excess_table import ExcessTable, OperatorTable
from kair_engine.localize.peers import Spread
from kair_engine.localize.signals import Measured
from kair_engine.ranks import Rank, as_positions, ranks_at
from kair_engine.results import SMALLEST_SHARE
from kair_engine.stats import TRIM, beyond_role, last_reported, median, role_medians, trimmed_mean
from kair_engine.timeline.batch_sizes import STEPS_OF_A_CHANGE, lasting_changes, of_the_samples

COLUMNS: Final = (
    "step", "self", "waited", "forward", "backward", "optimizer", "input", "gc", "cpu", "delay", "samples", "device"
)  # fmt: skip
_PARTS: Final = ("forward", "backward", "optimizer", "input", "cpu", "delay")
"""What is not recorded of every step, where steps are short."""
WARM_UP: Final = 40
"""The first steps say nothing: compilation, allocators, caches. The watch of a running job leaves out as many."""
FEWEST: Final = 40
"""Fewer steps than this show no lasting change (views/scope_changes.py)."""
MOST_CELLS: Final = 4_000_000
"""Of steps × ranks, the last ones."""
COMPILE: Final = "compile"
"""The scope in which capture records what a rank compiles; if it is recorded it is a column, too."""
GARBAGE: Final = "garbage collection"
LOOP: Final = "loop"
"""What is in no phase: the script between them."""
_FEW: Final = 1_000_000
"""Numbers that are counted rather than sorted, however few rows have them."""
_BUSY_US: Final = 500.0
"""CPU time above (step − wait) means busy-waiting; this much of it is the clocks' error."""


class Matrices(Mapping[str, Floats]):
    """Matrices by name, in the type in which they were recorded: each is made floats when it is asked for.

    All of millions of steps as floats would take as much memory as all that is worked out of them.
    """

    def __init__(self, of: Mapping[str, npt.NDArray[Any]]) -> None:
        """`of`: as they were recorded."""
        self._of: Final = of

    def __getitem__(self, name: str) -> Floats:
        return _floats(self._of[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def joined(self, more: Mapping[str, Floats]) -> "Matrices":
        """Return the same with others besides, or in their place."""
        return Matrices({**self._of, **more})

    def of_steps(self, kept: Bools) -> "Matrices":
        """Return the rows that are kept."""
        return Matrices({name: _kept(one, kept) for name, one in self._of.items()})


class _InNs(Mapping[str, Floats]):
    """Matrices by name that are made when they are asked for, which each is once."""

    def __init__(self, of: Mapping[str, Callable[[], Floats]]) -> None:
        """`of`: in µs."""
        self._of: Final = of

    def __getitem__(self, name: str) -> Floats:
        return self._of[name]() * 1e3

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


@dataclass(frozen=True)
class StepHistory:
    """Steps that the ranks have in common; the matrices are (steps × ranks), µs, without NaN."""

    ranks: Ints
    steps: Ints
    us: Mapping[str, Floats]
    """By column, all COLUMNS and COMPILE."""
    role: Ints
    """Per rank, a code: peers run the same program."""
    role_names: tuple[str, ...] = ()
    """Per code; empty where all are alike."""
    host: Ints | None = None
    """Per rank a number, equal for those of one host; None: unknown."""
    scopes: Mapping[str, Floats] = field(default_factory=dict)
    """The script's own scopes that half of the steps have."""
    alerts: Mapping[int, int] = field(default_factory=dict)
    """rank → the step in which the watch of the running job noticed that it is slow."""
    framework: str | None = None
    resized: tuple[int, ...] = ()
    """Steps from which on ranks take other numbers of samples."""
    thinned: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Steps whose parts some rank did not record: they have those of an earlier step."""

    @property
    def can_judge(self) -> bool:
        """Whether there is anybody to compare with, for long enough."""
        return len(self.ranks) > 1 and len(self.steps) >= FEWEST

    def us_and(self, more: Mapping[str, Floats]) -> Matrices:
        """Return `us` with others besides, or in their place."""
        return (self.us if isinstance(self.us, Matrices) else Matrices(self.us)).joined(more)

    @cached_property
    def has_parts(self) -> Bools:
        """Return (steps): which have parts of their own; one record that is repeated is one measurement."""
        return ~np.isin(self.steps, self.thinned)

    @cached_property
    def step_us(self) -> float:
        """The median over steps of the median rank's."""
        return max(float(median(self.us["step"], axis=None)), 1e-3) if self.us["step"].size else 1e-3

    @cached_property
    def own(self) -> Floats:
        """What each took by itself, as if it took as many samples as its peers."""
        samples = self.us["samples"]
        if not (samples > 0).all():
            return self.us["self"]
        usual = role_medians(samples, self.role)
        return np.asarray(self.us["self"] * usual / samples * of_the_samples(samples, usual))

    @cached_property
    def sees_waiting(self) -> bool:
        """Return whether any waiting was recorded; models that are compiled show none."""
        return bool(self.us["waited"].any())

    @cached_property
    def tells_cpu(self) -> bool:
        """Whether all ranks recorded what their threads computed, and none waits busily."""
        cpu = self.us["cpu"]
        return bool((median(cpu, axis=0) > 0).all()) and bool((median(cpu - self.us["self"], axis=0) <= _BUSY_US).all())

    @cached_property
    def asleep(self) -> Floats:
        """Time neither computing nor ready to, though waiting for nobody: 0 where that was not recorded."""
        us = self.us
        return np.maximum(us["self"] - us["cpu"] - us["delay"], 0.0) if self.tells_cpu else np.zeros_like(us["self"])

    @cached_property
    def unseen_us(self) -> float:
        """Return how long every rank may wait for others in a step without a record of it, in µs.

        That is its own time without computing, if that was recorded. Programs that XLA compiles hold collectives, and
        any call that needs a result may wait for them. Other jobs hide waiting if none was recorded; a device's own
        time has none.
        """
        is_seen = self.sees_waiting and self.framework != "xla"
        if not len(self.steps) or is_seen or self.us["device"].any():
            return 0.0
        return float(trimmed_mean(self.asleep if self.tells_cpu else self.us["self"], TRIM).min())

    @property
    def hides_waiting(self) -> bool:
        """Whether so much waiting may be unseen that a rank can be slow without taking longer than others."""
        return self.unseen_us >= SMALLEST_SHARE * self.step_us

    @cached_property
    def parts(self) -> dict[str, Floats]:
        """Where a step's own time goes by the script's order, and the script's own scopes before those."""
        us = self.us
        if us["device"].any():
            return {**self.scopes, "input": us["input"], "device": np.maximum(us["self"] - us["input"], 0.0)}
        named = us["forward"] + us["backward"] + us["optimizer"] + us["input"]
        within = {"backward": np.maximum(us["backward"] - us["waited"], 0.0), LOOP: np.maximum(us["step"] - named, 0.0)}
        return {**self.scopes, **{name: us[name] for name in ("input", "forward", "optimizer")}, **within}

    def table(self) -> ExcessTable:
        """Return what stage 1's tests look at."""
        us = self.us
        computes = np.maximum(us["backward"] - us["waited"], 0.0)
        computes += us["forward"] + us["optimizer"]
        by_class, work = np.zeros((len(self.steps), len(CLASSES), len(self.ranks))), list[Floats]()
        spent = {"input": us["input"]}
        if float(median(computes, axis=None)) > 0:
            spent["host"] = np.maximum(self.own - us["input"] - computes, 0.0)
        del computes
        spent["compute"] = self.own - us["input"] - spent.get("host", 0.0)
        for at, name in enumerate(CLASSES):
            if (of_class := spent.pop(name, None)) is not None:
                np.multiply(of_class, 1e3, out=by_class[:, at])
            work.append(median(by_class[:, at], axis=0))
            if of_class is not None:
                by_class[:, at] -= role_medians(by_class[:, at], self.role)
        garbage = us["gc"] * 1e3
        return replace(
            self.bare_table(),
            by_step_ns=by_class,
            work_ns=np.stack(work),
            of_operator={GARBAGE: OperatorTable(False, beyond_role(garbage, self.role), _typical(garbage, self.role))},
            exposed_waiting_ns=us["waited"] * 1e3 if len(np.unique(self.role)) == 1 else None,
        )

    def bare_table(self) -> ExcessTable:
        """Return the table with zeros for the times of ranks, to find events in other values."""
        shape = len(self.steps), len(CLASSES), len(self.ranks)
        step_ns = median(self.us["step"], axis=1) * 1e3
        nothing = np.broadcast_to(np.zeros(1), shape)
        return ExcessTable(self.role, None, nothing, step_ns, nothing[0], {}, on_device=False, host=self.host)

    def measured(self) -> Measured:
        """Return what the kernel measured of the training threads."""
        if not self.tells_cpu:
            return Measured()
        told = {
            "cpu_time": lambda: self.us["cpu"],
            "run_queue_wait": lambda: self.us["delay"],
            "asleep": lambda: self.asleep,
        }
        return Measured(_InNs(told))

    def spread(self) -> Spread:
        """Return what healthy ranks differ by for good in their own time, µs."""
        return Spread.of_own_time(float(median(self.own, axis=None)), self.step_us)

    def numbers(self, positions: Iterable[int]) -> tuple[Rank, ...]:
        """Of ranks at these places."""
        return ranks_at(self.ranks, as_positions(positions))

    def of_steps(self, steps: Sequence[int]) -> "StepHistory":
        """Return the history of these steps alone, as far as it has them."""
        kept = np.isin(self.steps, steps)
        us = self.us_and({}).of_steps(kept)
        scopes = {name: one[kept] for name, one in self.scopes.items()}
        return replace(self, steps=self.steps[kept], us=us, scopes=scopes)

    def by_parts(self) -> "list[StepHistory]":
        """Return what is tested: this history, or all its steps without parts, and those that have their own."""
        if self.has_parts.all():
            return [self]
        nothing = np.broadcast_to(np.zeros(1), self.own.shape)
        without = replace(self, us=self.us_and(dict.fromkeys(_PARTS, nothing)))
        recorded = self.of_steps(self.steps[self.has_parts].tolist())
        return [without, recorded] if recorded.can_judge else [without]

    def slower(self, place: int, us: float) -> "StepHistory":
        """Return the same if a rank took so much longer in every step, and all others waited for it."""
        more = np.zeros_like(self.own)
        more[:, place] = us
        changed = {name: self.us[name] + more for name in ("self", "forward")}
        changed |= {"step": self.us["step"] + us, "waited": self.us["waited"] + us - more}
        return replace(self, us=self.us_and(changed))


def step_history(
    rank: Ints,
    step: Ints,
    columns: Mapping[str, npt.NDArray[Any]],
    *,
    role_of: Mapping[int, str] | None = None,
    host_of: Mapping[int, str] | None = None,
    scopes: Mapping[str, tuple[Ints, Ints, Floats]] | None = None,
    alerts: Mapping[int, int] | None = None,
    framework: str | None = None,
    thinned: Ints | None = None,
) -> StepHistory:
    """Return the history of equally long columns, a row per rank and step; `scopes` have (rank, step, µs) each, and
    `thinned` are the steps whose parts some rank did not record.

    Left out are ranks that recorded less than half of the steps, steps that some of the others lack, those at the
    begin, and the first steps of other batch sizes.
    """
    (ranks, row), (steps, column) = _numbered(rank), _numbered(step)
    shape = (len(steps), len(ranks))
    first = max(len(steps) - max(MOST_CELLS // max(len(ranks), 1), FEWEST), min(WARM_UP, len(steps) // 4))
    place = column * np.int64(len(ranks)) + row
    del row, column
    # Most are rows of all ranks and steps, in this order: these are a matrix as they are.
    is_whole = len(place) == shape[0] * shape[1] and bool((np.diff(place) > 0).all())
    told = np.zeros(shape, np.bool_)
    told.reshape(-1)[place] = True
    told[:first] = False
    kept_ranks = told.sum(axis=0) * 2 >= max(len(steps) - first, 1)
    kept_steps = np.zeros(len(steps), np.bool_)
    if kept_ranks.any():
        kept_steps[:] = told[:, kept_ranks].all(axis=1)

    def matrix(name: str) -> npt.NDArray[Any]:
        values, of_kept = columns.get(name), (int(np.count_nonzero(kept_steps)), int(np.count_nonzero(kept_ranks)))
        if values is None or not values.any():
            return np.broadcast_to(np.zeros(1), of_kept)
        every = values if is_whole else np.zeros(shape[0] * shape[1], values.dtype)
        if not is_whole:
            every[place] = values
        return _kept(_kept(every.reshape(shape), kept_steps).T, kept_ranks).T

    us = {name: matrix(name) for name in COLUMNS}
    kept = ranks[kept_ranks]
    names = [(role_of or {}).get(int(one), "all") for one in kept]
    role_names = sorted(set(names))
    hosts = [(host_of or {}).get(int(one), "") for one in kept]
    host = None if "" in hosts or not hosts else np.array([sorted(set(hosts)).index(one) for one in hosts])
    if len(kept) and us["device"].any(axis=0).all():
        us["device"] = us["self"] = last_reported(_floats(us["device"]))
    elif not us["waited"].any():
        # Nobody is seen to wait, as where a model is compiled: ranks of a job wait for gradients in backward.
        us["self"] = np.maximum(_floats(us["self"]) - us["backward"], 0.0)
    found = StepHistory(
        ranks=kept.astype(np.int64),
        steps=steps[kept_steps].astype(np.int64),
        us=Matrices(us),
        role=np.array([role_names.index(one) for one in names], np.int64),
        role_names=tuple(role_names),
        host=host,
        alerts=alerts or {},
        framework=framework,
        thinned=np.zeros(0, np.int64) if thinned is None else thinned,
    )
    by_scope = {name: _scope(found, *one) for name, one in (scopes or {}).items()}
    compiles = by_scope.pop(COMPILE, np.zeros((len(found.steps), len(found.ranks))))
    of_scripts = {
        name: of for name, of in by_scope.items() if 2 * np.count_nonzero(of.max(axis=1, initial=0.0)) >= len(of) > 0
    }
    return _at_settled_sizes(replace(found, scopes=of_scripts, us=Matrices({**us, COMPILE: compiles})))


def _numbered(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the values that occur, in order, and the place of each row's among them."""
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, -1)
    if most - least > len(values) + _FEW:
        return np.unique(values, return_inverse=True)
    is_there = np.zeros(most - least + 1, np.bool_)
    is_there[values - least] = True
    return np.flatnonzero(is_there) + least, (np.cumsum(is_there, dtype=np.int32) - 1)[values - least]


def _kept(values: npt.NDArray[Any], kept: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return the rows that are kept, without a copy where they follow one another."""
    at = np.flatnonzero(kept)
    if len(at) and at[-1] - at[0] + 1 == len(at):
        return values[at[0] : at[-1] + 1]
    return values[at]


def _floats(values: npt.NDArray[Any]) -> Floats:
    return np.asarray(values, np.float64)


def _scope(history: StepHistory, rank: Ints, step: Ints, us: Floats) -> Floats:
    """Return a scope's matrix, 0 where it was not called."""
    there = np.isin(rank, history.ranks) & np.isin(step, history.steps)
    result = np.zeros((len(history.steps), len(history.ranks)))
    result[np.searchsorted(history.steps, step[there]), np.searchsorted(history.ranks, rank[there])] = us[there]
    return result


def _at_settled_sizes(history: StepHistory) -> StepHistory:
    """Without the steps in which what is compiled is compiled for other batch sizes."""
    samples = np.where(history.us["samples"] > 0, history.us["samples"], np.nan)
    changes = lasting_changes(samples) if len(samples) else np.zeros(0, np.int64)
    if not len(changes):
        return history
    at = np.arange(len(samples))
    kept = np.all([(at < one) | (at >= one + STEPS_OF_A_CHANGE) for one in changes], axis=0)
    return replace(history.of_steps(history.steps[kept].tolist()), resized=tuple(history.steps[changes].tolist()))


def _typical(values: Floats, role: Ints) -> Floats:
    return np.asarray(role_medians(median(values, axis=0)[None], role)[0])
