"""What a replay finds that no finding explains: work that takes some ranks longer than others, on nobody in particular.

Tests set a rank apart from its peers, and patterns have their signs. What has neither may still cost a good part of the
step: all wait for the slowest rank, even if it is another one each time. A replay with everything at the mean of ranks
and steps shows how much that is, of whatever kind.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kair_engine.errors import InputError, UsageError
from kair_engine.results.triage import Finding, OpenItem
from kair_engine.results.whatif import FIX_KINDS, Fix
from kair_engine.triage.replays import Replays, fits
from kair_engine.whatif.model import Baseline, Model

WORTH_SAYING: Final = 0.05
"""Of the step, what no finding explains."""


def with_all_even(fixes: tuple[Fix, ...]) -> tuple[Fix, ...]:
    """Return these, and everything else at its mean."""
    return (*fixes, Fix(even=True))


def unexplained(
    replays: Replays, findings: Sequence[Finding], priced: tuple[Fix, ...], step_time_us: float, known_us: float
) -> Iterator[OpenItem]:
    """Yield how much of the step is left, and of what kind most of it is; nothing where it is not worth saying.

    `priced` holds the findings' fixes in the order of their replay: what was replayed for that is not replayed again.
    `known_us` of a step is known besides: what open items lay at ranks, and what is lost as ordinary steps vary, where
    whoever is longest in one is no straggler. Nothing is said, too, where nothing can be replayed, or the recording is
    of operation types, whose remedies are no fixes.
    """
    undone = {fix for finding in findings for fix in finding.fix}
    fixes = tuple(fix for fix in priced if fix in undone)
    try:
        model = replays.model()
        if "stops" not in model.kinds or not model.fits_memory():
            return
        left = _saved(model, fixes, [with_all_even(fixes)])[0]
        # What findings explain that no fix undoes.
        left -= sum(one.time_lost_us_per_step for one in findings if not one.fix) / max(step_time_us, 1e-3)
        left -= known_us / max(step_time_us, 1e-3)
        if left < WORTH_SAYING:
            return
        kinds = [kind for kind in FIX_KINDS if fits(model, Fix(kinds=(kind,), even=True))]
        each_even = [(*fixes, Fix(kinds=(one,), even=True)) for one in kinds]
        of_kind = _saved(model, fixes, each_even)
    except (InputError, UsageError):
        return
    _, kind = max(zip(of_kind, kinds, strict=True))
    yield OpenItem("uneven", (), (), left * step_time_us, left, cause=kind)


def _saved(model: Model, before: tuple[Fix, ...], after: list[tuple[Fix, ...]]) -> list[float]:
    """By what share of the recorded step each of `after` is shorter than one with the fixes `before`."""
    recorded, first, *then = (float(of.mean()) for of in model.replay([Baseline.RECORDED, before, *after]).times)
    return [(first - one) / max(recorded, 1.0) for one in then]
