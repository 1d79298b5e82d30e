"""The timeline of a step with fixes made, under the same one as it was recorded: what each rank would do, and when."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kair_engine.errors import InputError
from kair_engine.results.timeline import FixedTimeline, TimelineResult
from kair_engine.results.whatif import Fix
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.collectives import Collectives
from kair_engine.trace.model import Trace
from kair_engine.views.timeline import View, as_drawn, timeline
from kair_engine.views.timeline_prepared import PreparedStep
from kair_engine.whatif.analysis import model_asked_of
from kair_engine.whatif.model import Baseline, MovedStep


@dataclass(frozen=True)
class ReplayedStep:
    """A step with fixes made, ready to be looked at, and what it takes, ns."""

    step: PreparedStep
    recorded_ns: float
    """Replayed as recorded."""
    fixed_ns: float


def replayed_step(trace: Trace, recorded: PreparedStep, fixes: Sequence[Fix]) -> ReplayedStep:
    """Return the step with all of `fixes` made, by itself: as a what-if analysis of this one step prices them.

    Raises UsageError where a fix fits nothing, InputError where the step cannot be replayed by itself.
    """
    if len(recorded.held) < len(recorded.ops.ranks):
        raise InputError(
            f"step {recorded.ops.step} is too large to be drawn with fixes", "kair whatif prices the same fixes"
        )
    named = {rank for fix in fixes for rank in fix.ranks}.intersection(trace.job.ranks)
    model = model_asked_of(trace.select([recorded.ops.step]), named=named)
    for fix in fixes:
        model.require(fix)
    before, after = model.replay([Baseline.RECORDED, tuple(fixes)]).times
    step = _as_moved(recorded, model.moved(fixes))
    return ReplayedStep(step, float(before[0]), float(after[0]))


def timeline_with_fixes(
    view: View, trace: Trace, recorded: PreparedStep, replayed: ReplayedStep, texts: Sequence[str]
) -> TimelineResult:
    """As `timeline`, and the same step replayed in the same windows; of the whole step until both are over.

    `texts` are the fixes as they are to be shown. Raises UsageError as `timeline` does.
    """
    after = replayed.step
    if view.whole and view.end_us is None:
        view = replace(view, end_us=max(recorded.length_ns, after.length_ns) / 1e3)
    result = timeline(trace, view, recorded)
    drawn = as_drawn(recorded, view, result, after)
    fixed = FixedTimeline(
        fixes=tuple(texts),
        recorded_step_time_us=replayed.recorded_ns / 1e3,
        step_time_us=replayed.fixed_ns / 1e3,
        saved_us=(replayed.recorded_ns - replayed.fixed_ns) / 1e3,
        step_us=drawn.step_us,
        delayed=drawn.around.operation,
        rows=drawn.rows,
        collectives=drawn.collectives,
        collectives_in_view=drawn.collectives_in_view,
        under=drawn.under,
    )
    return replace(result, fixed=fixed)


def _as_moved(recorded: PreparedStep, moved: MovedStep) -> PreparedStep:
    """Return the step with its operations where they would lie.

    Who meets whom, and whose clock is ahead, stays as it is.
    """
    ops, found = recorded.ops, recorded.sync.collectives
    if len(ops) != len(moved.ops):
        raise InputError(f"step {ops.step} is replayed without some of its operations, and cannot be drawn")
    # The job's ranks and the model's can differ by what is marked as communication: the rows are the same.
    ops = replace(
        ops,
        begin_ns=moved.begin_ns,
        length_ns=moved.length_ns,
        start_ns=moved.start_ns,
        duration_ns=moved.end_ns - moved.start_ns,
        remembered=None,
    )
    sync = Synchronisation(Collectives(ops, found.row, found.instance, found.rejected), recorded.sync.clocks)
    return PreparedStep(recorded.job, ops, sync, recorded.role, recorded.held, recorded)
