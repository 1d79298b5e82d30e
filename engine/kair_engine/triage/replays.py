"""Makes a recording ready for replay, once for all that triage asks of it."""

from collections.abc import Iterator

import numpy as np

from kair_engine.errors import InputError, UsageError
from kair_engine.results.fix import Fix
from kair_engine.timeline.synchronisation import Synchronisation
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.steps.large_steps import large_steps
from kair_engine.trace.steps.step_batches import operations_of_steps
from kair_engine.trace.steps.step_memory import keeping_steps
from kair_engine.trace.warning_texts import short_warning
from kair_engine.triage.sampling import StepSample
from kair_engine.whatif.inexact_replay import STEADY_ERROR_GATE, inexact_replay, replay_error
from kair_engine.whatif.model import Baseline, Model
from kair_engine.whatif.models import model_of

MOST_KEPT = 300_000
"""Operations whose graphs stay in memory from one question to the next: what a replay holds at one time anyway."""


def read_once(trace: Trace) -> Trace:
    """The trace, whose steps stay in memory for all that is asked of them where their graphs do anyway."""
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
        """Keeps a step that was read anyway; steps come in their order, and where there are many none is kept."""
        if self._keep:
            self._synchronised.append(step)

    def choose(self, sample: StepSample, of: Trace | None) -> None:
        """Says which steps are replayed, before anything is asked: without, all of them.

        `of` is the trace, or the trace as of some of its ranks; None where no part of it can be replayed.
        """
        self.sample, self._of = sample, of

    @property
    def figures(self) -> dict[str, float]:
        """What is said of a sample of the ranks beside a price: none where all are replayed."""
        replayed, ranks = len(self._of.job.ranks) if self._of is not None else 0, len(self._trace.job.ranks)
        return {} if replayed == ranks else {"replayed_ranks": replayed, "ranks": ranks}

    def limits(self) -> tuple[KairWarning, ...]:
        """What an answer lacks where no part of the ranks can be replayed."""
        if self._of is not None:
            return ()
        text = "steps are too large to be replayed: prices are estimates, and what all ranks spend alike is not told"
        return (short_warning("not_replayed", text),)

    def inexact(self) -> Iterator[KairWarning]:
        """Where hosts run ahead, that the replay is far off the recording: then prices are uncertain, not verdicts."""
        if self._trace.job.host_times is None:
            return
        try:
            replayed = self.model().replay([Baseline.RECORDED])
        except (InputError, UsageError):
            return
        recorded, measured = replayed.times[0], replayed.measured
        off = replay_error(recorded, measured)
        yield from inexact_replay(replayed.steps, recorded, measured, off, STEADY_ERROR_GATE)

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
    """Whether the recording has what the fix changes: pauses told by their pattern alone are in none as collections."""
    try:
        model.require(fix)
    except UsageError:
        return False
    return True
