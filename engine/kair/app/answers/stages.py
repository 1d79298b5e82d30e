"""Answers of the three stages: localize, pinpoint, blame."""

from dataclasses import replace

from kair.app.question import Given
from kair_engine.errors import UsageError
from kair_engine.ranks import Rank
from kair_engine.results import Method, StepClock
from kair_engine.results.blame import BlameResult
from kair_engine.results.localize import GroupBy, LocalizeResult
from kair_engine.results.pinpoint import PinpointResult


def localize(
    given: Given,
    *,
    method: Method = "robust",
    clock: StepClock = "rank",
    whole_run: bool = False,
    normalized: bool = False,
    by: GroupBy = "rank",
    matrix: bool = False,
    only_rank: Rank | None = None,
) -> LocalizeResult:
    """Return a score for every rank, `only_rank` first.

    Raises UsageError for a rank that left no trace, and for options of the other method.
    """
    from kair_engine.localize.analysis import localize as score

    _require_paper(method, clock)
    if method != "paper" and (whole_run or normalized or matrix):
        raise UsageError("--whole-run, --normalized and --matrix belong to --method paper")
    trace, baseline = given.trace, given.baseline
    given.require_rank(only_rank)
    found = score(trace, method=method, whole_run=whole_run, normalized=normalized, by=by, matrix=matrix, clock=clock)
    if baseline is not None and (method != "paper" or baseline.named):
        if method == "paper":
            raise UsageError("--baseline belongs to the robust method")
        from kair_engine.comparison.analysis import with_baseline

        found = with_baseline(found, trace, baseline)
    if only_rank is None:
        return found
    return replace(found, scores=tuple(sorted(found.scores, key=lambda row: row.rank != only_rank)))


def pinpoint(
    given: Given, *, rank: Rank, method: Method = "robust", clock: StepClock = "rank", limit: int = 50
) -> PinpointResult:
    """Return one rank's outlying operators. Raises UsageError for a rank that left no trace."""
    from kair_engine.pinpoint import pinpoint as find

    _require_paper(method, clock)
    return find(given.trace, rank=rank, method=method, limit=limit, clock=clock)


def blame(
    given: Given,
    *,
    rank: Rank | None = None,
    operator: str | None = None,
    method: Method = "robust",
    clock: StepClock = "rank",
    limit: int = 20,
) -> BlameResult:
    """Return the paths that lead from waiting to its root causes. Raises UsageError for a rank that left no trace."""
    from kair_engine.blame.analysis import blame as trace_back

    _require_paper(method, clock)
    return trace_back(given.trace, rank=rank, operator=operator, method=method, limit=limit, clock=clock)


def _require_paper(method: Method, clock: StepClock) -> None:
    """Raise UsageError for a clock that only the paper's method asks for."""
    if method != "paper" and clock != "rank":
        raise UsageError("--clock belongs to --method paper")
