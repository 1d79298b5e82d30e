"""Makes a recording ready for replay, once for all that triage asks of it.

Chooses the steps whose replay stands for all, and says how far off that is.

A replay takes several times as long as all else that triage does. Of many large steps a few are replayed, and what
they save is carried over to the others by what is known of all of them: how long they took, and how much longer than
its peers each suspect did.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.errors import InputError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import JobExcess
from kair_engine.results.whatif import Fix
from kair_engine.stats import student_t_tail
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.trace.batches import keeping_steps, operations_of_steps
from kair_engine.trace.large_steps import large_steps
from kair_engine.trace.model import KairWarning, Trace, short_warning
from kair_engine.whatif.analysis import model_of
from kair_engine.whatif.model import Baseline, Model
from kair_engine.whatif.prices import STEADY_ERROR_GATE, inexact_replay

MOST_REPLAYED: Final = 2_000_000
"""Operations of all steps: of more a sample is replayed."""
FEWEST: Final = 2
"""Steps of a sample: of one nobody could say how far off it is."""
SHOWN: Final = 0.5
"""A sample stands for a finding if its steps have this share at least of what it costs the mean step."""
_OUTSIDE: Final = 0.025
"""On either side of an interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean over all steps, ns, and how far off it is at most in 95 of 100 samples; 0 where all steps are known."""

    mean_ns: float
    off_ns: float = 0.0


@dataclass(frozen=True)
class StepSample:
    """Some of the chosen steps, in order; of all of them how long each took, ns."""

    steps: tuple[int, ...]
    of: tuple[int, ...]
    length_ns: Floats

    @property
    def is_whole(self) -> bool:
        """Whether no step is left out."""
        return len(self.steps) == len(self.of)

    def mean_ns(self, replayed: Floats, steps: Sequence[int]) -> float:
        """Return the mean step as recorded, where these steps were replayed."""
        if self.is_whole:
            return float(replayed.mean())
        return float(replayed.mean() * self.length_ns.mean() / max(self.length_ns[self._places(steps)].mean(), 1.0))

    def without_ns(self, recorded: Floats, fixed: Floats, steps: Sequence[int], cost: Floats) -> Estimate | None:
        """Return the mean step with something fixed, of how these steps were replayed as recorded and with it.

        `cost` says of every step how much there was to save, in any unit: steps save in proportion to it. None where
        the replayed ones had next to nothing of it.
        """
        if self.is_whole:
            return Estimate(float(fixed.mean()))
        saved, seen, known = recorded - fixed, cost[self._places(steps)], len(steps)
        if seen.mean() < SHOWN * cost.mean() or seen.mean() <= 0:
            return None
        share = saved.mean() / seen.mean()
        spread = float(((saved - share * seen) ** 2).sum()) / max(known - 1, 1)
        off = _t_quantile(known - 1) * math.sqrt(spread * (1 - known / len(self.of)) / known)
        scale = float(cost.mean() / seen.mean())
        return Estimate(self.mean_ns(recorded, steps) - float(saved.mean()) * scale, off * scale)

    def figures(self, steps: Sequence[int], mean: Estimate) -> dict[str, float]:
        """Return what is said about a sample next to a price: nothing if all steps were replayed."""
        if self.is_whole:
            return {}
        return {"replayed_steps": len(steps), "steps": len(self.of), "plus_minus_us": mean.off_ns / 1e3}

    def _places(self, steps: Sequence[int]) -> Ints:
        return np.searchsorted(np.array(self.of), np.array(steps))


def sample_of(trace: Trace, job: JobExcess, suspected: Sequence[int]) -> StepSample:
    """All steps, where a replay of them is affordable; else so many, from those in which the suspects cost least to
    those in which they cost most. `suspected` are places among the ranks; without any, a step's length counts.
    """
    operations = operations_of_steps(trace)
    whole = StepSample(trace.steps, trace.steps, job.step_times_ns)
    most = max(MOST_REPLAYED // max(max(operations.values(), default=1), 1), FEWEST)
    if trace.job.format == "whatif" or sum(operations.values()) <= MOST_REPLAYED or most >= len(trace.steps):
        return whole
    by = excess_of_steps(job, suspected) if len(suspected) else job.step_times_ns
    ordered = np.argsort(by, kind="stable")
    chosen = np.sort(ordered[np.round(np.linspace(0, len(ordered) - 1, most)).astype(np.int64)])
    return StepSample(tuple(trace.steps[place] for place in chosen.tolist()), trace.steps, job.step_times_ns)


def excess_of_steps(job: JobExcess, places: Sequence[int], row: int | None = None) -> Floats:
    """Return, per step, how much longer (ns) than peers some ranks took on average; in one class of time, or all."""
    classes = slice(None) if row is None else slice(row, row + 1)
    own = np.nan_to_num(job.by_step_ns[:, classes][:, :, list(places)], nan=0.0)
    return np.asarray(own.sum(axis=1).mean(axis=1))


def _t_quantile(df: int) -> float:
    """By how many standard errors the mean of a sample is off at most in 95 of 100; by bisection."""
    low, high = 0.0, 64.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_tail(middle, df) > _OUTSIDE else (low, middle)
    return high


MOST_KEPT = 300_000
"""Operations whose graphs stay in memory from one question to the next: what a replay holds at one time anyway."""


def read_once(trace: Trace) -> Trace:
    """Return the trace, whose steps stay in memory for all that is asked of them where their graphs do anyway."""
    if trace.memory is not None or trace.workers is not None or large_steps(trace):
        return trace
    return keeping_steps(trace, MOST_KEPT)


class Replays:
    """The model of the steps that are replayed, made when it is first asked for."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._of: Trace | None = trace
        self._model: Model | None = None
        self._keep = sum(operations_of_steps(trace).values()) <= MOST_KEPT
        self._synchronised: list[Synchronisation] = []
        self.sample = StepSample(trace.steps, trace.steps, np.zeros(len(trace.steps)))

    def add(self, step: Synchronisation) -> None:
        """Keep a step that was read anyway; steps come in their order, and where there are many none is kept."""
        if self._keep:
            self._synchronised.append(step)

    def choose(self, sample: StepSample, of: Trace | None) -> None:
        """Says which steps are replayed, before anything is asked: without, all of them.

        `of` is the trace, or the trace as of some of its ranks; None where no part of it can be replayed.
        """
        self.sample, self._of = sample, of

    @property
    def figures(self) -> dict[str, float]:
        """What is said about a sample of the ranks next to a price: nothing if all are replayed."""
        replayed, ranks = len(self._of.job.ranks) if self._of is not None else 0, len(self._trace.job.ranks)
        return {} if replayed == ranks else {"replayed_ranks": replayed, "ranks": ranks}

    def limits(self) -> tuple[KairWarning, ...]:
        """Return what an answer lacks where no part of the ranks can be replayed."""
        if self._of is not None:
            return ()
        text = (
            "steps are too large to be replayed: prices are estimates, and what all ranks spend alike is not looked for"
        )
        return (short_warning("not_replayed", text),)

    def inexact(self) -> Iterator[KairWarning]:
        """Where hosts run ahead, that the replay is far off the recording: then prices are uncertain, not verdicts."""
        if self._trace.job.host_times is None:
            return
        try:
            replayed = self.model().replay([Baseline.RECORDED])
        except (InputError, UsageError):
            return
        yield from inexact_replay(replayed.steps, replayed.times[0], replayed.measured, STEADY_ERROR_GATE)

    def model(self) -> Model:
        """Of the steps that are replayed. Raises what `model_of` raises, UsageError where nothing can be replayed."""
        if self._of is None:
            raise UsageError("the steps are too large to be replayed, and no part of the ranks stands for all")
        if self._model is None:
            trace = self._of if self.sample.is_whole else self._of.select(self.sample.steps)
            chosen = [one for one in self._synchronised if one.collectives.ops.step in self.sample.steps]
            self._model = model_of(trace, keep=self._keep, synchronised=chosen)
            self._synchronised = []
        return self._model


def fits(model: Model, fix: Fix) -> bool:
    """Return whether the recording has what the fix changes: pauses known by their pattern alone are no collections."""
    try:
        model.require(fix)
    except UsageError:
        return False
    return True
