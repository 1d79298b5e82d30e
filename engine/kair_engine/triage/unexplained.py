"""What a replay finds that no finding explains: work that takes some ranks longer than others, on nobody in particular.

Tests tell a rank from its peers, and patterns have signs of their own. Whatever has neither may still cost a good part
of the step: all wait for whoever is longest, be it another one each time. A replay with everything as long as in the
mean of ranks and steps tells how much that is, of whatever kind.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kair_engine.errors import InputError, UsageError
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import FIX_KINDS, Fix
from kair_engine.trace.model import KairWarning
from kair_engine.triage.replays import Replays, fits
from kair_engine.whatif.model import Baseline, Model

WORTH_SAYING: Final = 0.05
"""Of the step, what no finding explains."""
STRAGGLING: Final = 1.1
"""Times slower than without: what a job with stragglers is at least, as published [W §4]."""
UNEXPLAINED: Final = "unexplained"


def with_all_even(fixes: tuple[Fix, ...]) -> tuple[Fix, ...]:
    """These, and everything else as long as in the mean."""
    return (*fixes, Fix(even=True))


def unexplained(
    replays: Replays, findings: Sequence[Finding], priced: tuple[Fix, ...], step_time_us: float
) -> Iterator[KairWarning]:
    """That so much of the step is left, and of what kind of time most of it is; nothing where it is not worth saying.

    `priced` holds the findings' fixes in the order of their replay: what was replayed for that is not replayed again.
    Nothing is said, too, where nothing can be replayed, or the recording is of operation types, whose remedies are no
    fixes.
    """
    undone = {fix for finding in findings for fix in finding.fix}
    fixes = tuple(fix for fix in priced if fix in undone)
    try:
        model = replays.model()
        if "stops" not in model.kinds or not model.fits_memory():
            return
        left = _saved(model, fixes, [with_all_even(fixes)])[0] - _without_fix(findings, step_time_us)
        if left < WORTH_SAYING:
            return
        kinds = [kind for kind in FIX_KINDS if fits(model, Fix(kinds=(kind,), even=True))]
        each_even = [(*fixes, Fix(kinds=(one,), even=True)) for one in kinds]
        of_kind = _saved(model, fixes, each_even)
    except (InputError, UsageError):
        return
    largest, kind = max(zip(of_kind, kinds, strict=True))
    figures = {"share_of_step": left, "of_kind_share_of_step": max(largest, 0.0)}
    yield KairWarning(UNEXPLAINED, figures=figures, about=kind)


def leaves_verdict_open(told: Iterable[KairWarning]) -> bool:
    """Whether the job is too slow for it to be called one without stragglers."""
    return any(1 / (1 - min(one.figures["share_of_step"], 0.99)) >= STRAGGLING for one in told)


def _saved(model: Model, before: tuple[Fix, ...], after: list[tuple[Fix, ...]]) -> list[float]:
    """By what share of the recorded step each of `after` is shorter than one with the fixes `before`."""
    recorded, first, *then = (float(of.mean()) for of in model.replay([Baseline.RECORDED, before, *after]).times)
    return [(first - one) / max(recorded, 1.0) for one in then]


def _without_fix(findings: Sequence[Finding], step_time_us: float) -> float:
    """What findings explain that no fix undoes, as a share of the step."""
    return sum(one.time_lost_us_per_step for one in findings if not one.fix) / max(step_time_us, 1e-3)
