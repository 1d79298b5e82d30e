"""Makes a recording ready for replay, once for all that triage asks of it."""

from kair_engine.timeline.synchronisation import Synchronisation
from kair_engine.trace.model import Trace
from kair_engine.trace.step_batches import operations_of_steps
from kair_engine.whatif.model import Model
from kair_engine.whatif.models import model_of

MOST_KEPT = 300_000
"""Operations whose graphs stay in memory from one question to the next: what a replay holds at one time anyway."""


class Replays:
    """The models of a recording by their steps, each made when it is first asked for."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._models: dict[tuple[int, ...], Model] = {}
        self._keep = sum(operations_of_steps(trace).values()) <= MOST_KEPT
        self._synchronised: list[Synchronisation] = []

    def add(self, step: Synchronisation) -> None:
        """Keeps a step that was read anyway; steps come in their order, and where there are many none is kept."""
        if self._keep:
            self._synchronised.append(step)

    def model(self, steps: tuple[int, ...]) -> Model:
        """Of some of the steps, in order. Raises what `model_of` raises."""
        if steps not in self._models:
            whole = steps == self._trace.steps
            trace, read = (self._trace, self._synchronised) if whole else (self._trace.select(steps), [])
            self._models[steps] = model_of(trace, keep=self._keep, synchronised=read)
            self._synchronised = []
        return self._models[steps]
