"""Chooses the model that fits a recording."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_engine.whatif.model import Model

if TYPE_CHECKING:
    from kair_engine.timeline.synchronisation import Synchronisation


def model_asked_of(trace: Trace, *, keep: bool = False) -> Model:
    """`model_of` the trace as triage comes to see it: what ranks wait in is communication, whatever its name."""
    if trace.job.format != "whatif":
        from kair_engine.localize.unknown_communication import told_apart  # of which the published model needs nothing

        trace = told_apart(trace)
    return model_of(trace, keep=keep)


def model_of(trace: Trace, *, keep: bool = False, synchronised: "Sequence[Synchronisation]" = ()) -> Model:
    """The published model of recordings with operation types and pipeline stages, of all others one of operators.

    `keep`: what was read stays in memory, as far as that is affordable, for the questions that follow. `synchronised`
    are all chosen steps in order, where they have been read already. Raises UsageError where no step is chosen,
    InputError where none can be replayed.
    """
    if not trace.steps:
        raise UsageError("no complete step to analyse")
    # Few need both models.
    if trace.job.format == "whatif":
        from kair_engine.whatif.pipeline.model import PipelineModel

        return PipelineModel(trace)
    from kair_engine.whatif.operators.model import OperatorModel

    return OperatorModel(trace, keep=keep, synchronised=synchronised)
