"""Chooses the model that fits a recording."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_engine.whatif.model import Model

if TYPE_CHECKING:
    from kair_engine.timeline.synchronisation import Synchronisation


def model_asked_of(trace: Trace, *, keep: bool = False, named: Collection[int] = ()) -> Model:
    """`model_of` the trace as triage comes to see it: what ranks wait in is communication, whatever its name.

    Of steps that are too large for a replay some ranks stand for all, those that are `named` among them.
    """
    if trace.job.format == "whatif":
        return model_of(trace, keep=keep)
    # Of which the published model needs nothing.
    from kair_engine.localize.unnamed_collectives import with_collectives_marked
    from kair_engine.whatif.operators.model import OperatorModel
    from kair_engine.whatif.rank_sampling import standing_for_all

    _require_steps(trace)
    trace = with_collectives_marked(trace)
    return OperatorModel(standing_for_all(trace, named), keep=keep, ranks=len(trace.job.ranks))


def model_of(trace: Trace, *, keep: bool = False, synchronised: "Sequence[Synchronisation]" = ()) -> Model:
    """The published model of recordings with operation types and pipeline stages, of all others one of operators.

    `keep`: what was read stays in memory, as far as that is affordable, for the questions that follow. `synchronised`
    are all chosen steps in order, where they have been read already. Raises UsageError where no step is chosen,
    InputError where none can be replayed.
    """
    _require_steps(trace)
    # Few need both models.
    if trace.job.format == "whatif":
        from kair_engine.whatif.pipeline.model import PipelineModel

        return PipelineModel(trace)
    from kair_engine.whatif.operators.model import OperatorModel

    return OperatorModel(trace, keep=keep, synchronised=synchronised)


def _require_steps(trace: Trace) -> None:
    if not trace.steps:
        raise UsageError("no complete step to analyse")
