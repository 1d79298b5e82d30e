"""`kair localize`: stage 1, a score for every rank."""

from dataclasses import replace
from typing import Annotated

from kair_engine.errors import UsageError
from kair_engine.results import Method, StepClock
from kair_engine.results.localize import ChosenBaseline, GroupBy, LocalizeResult
from kair_engine.trace.model import Trace, require_rank
from kair_tui.cli.options import CLOCK, METHOD, ONLY_RANK, Option, require_paper

RENDERER = "kair_tui.render.localize"


def run(
    trace: Trace,
    *,
    method: Annotated[Method, METHOD] = "robust",
    clock: Annotated[StepClock, CLOCK] = "rank",
    whole_run: Annotated[
        bool, Option("--whole-run", "Paper method: windows over the whole recording, not per step.")
    ] = False,
    normalized: Annotated[
        bool, Option("--normalized", "Paper method: cumulative shares instead of raw counts.")
    ] = False,
    by: Annotated[GroupBy, Option("--by", "Also add up the scores of each host or role.")] = "rank",
    matrix: Annotated[bool, Option("--matrix", "Paper method: also the distance between every two ranks.")] = False,
    only_rank: Annotated[int | None, ONLY_RANK] = None,
    baseline: ChosenBaseline | None = None,
) -> LocalizeResult:
    """Asks the engine. Raises UsageError for a rank that left no trace."""
    if only_rank is None:
        return _found(trace, method, clock, whole_run, normalized, by, matrix, baseline)
    require_rank(trace, only_rank)
    found = _found(trace, method, clock, whole_run, normalized, by, matrix, baseline)
    return replace(found, scores=tuple(sorted(found.scores, key=lambda row: row.rank != only_rank)))


def _found(  # noqa: PLR0917  (each is an option)
    trace: Trace,
    method: Method,
    clock: StepClock,
    whole_run: bool,
    normalized: bool,
    by: GroupBy,
    matrix: bool,
    baseline: ChosenBaseline | None,
) -> LocalizeResult:
    from kair_engine.localize.analysis import localize

    require_paper(method, clock)

    if method != "paper" and (whole_run or normalized or matrix):
        raise UsageError("--whole-run, --normalized and --matrix belong to --method paper")

    found = localize(
        trace, method=method, whole_run=whole_run, normalized=normalized, by=by, matrix=matrix, clock=clock
    )
    if baseline is None or (method == "paper" and not baseline.named):
        return found
    if method == "paper":
        raise UsageError("--baseline belongs to the robust method")
    from kair_engine.comparison.analysis import with_baseline

    return with_baseline(found, trace, baseline)
