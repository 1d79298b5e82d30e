"""Says whether a lack of cores on all ranks may be why the steps of a recording became longer.

A neighbour that begins to run takes cores from then on. That loss is in the price of contention, which is found: it is
told once, and leaves no verdict open beside it.
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from kair_engine.errors import InputError, UsageError
from kair_engine.results.triage import Finding
from kair_engine.stats import median
from kair_engine.trace.model import KairWarning
from kair_engine.triage.replays import Replays
from kair_engine.triage.shared_costs import fix_of_all
from kair_engine.whatif.model import Baseline, Counterfactual, Model, Undisturbed

CONTENTION_US: Final = "contention_us"
"""The figure of the warning of longer steps that says how much more contention costs in them, if that is why."""


def grown_contention_us(replays: Replays, findings: Sequence[Finding], since: Collection[int]) -> float:
    """Return by how much more contention on all ranks costs in these steps than in the others, at most.

    Return 0 where no contention is found on all ranks, or none of these or of the other steps can be replayed.
    """
    contended = [one for one in findings if one.cause == "contention" and one.pattern == "job_wide"]
    if not contended:
        return 0.0
    try:
        model = replays.model()
        replayed = model.replay([Baseline.RECORDED, *_without(model, contended)])
    except (InputError, UsageError):
        return 0.0
    recorded, *without = replayed.times
    within = np.isin(replayed.steps, list(since))
    if within.all() or not within.any():
        return 0.0
    saved = recorded - np.min(without, axis=0)
    return max(float(median(saved[within]) - median(saved[~within])), 0.0) / 1e3


def _without(model: Model, contended: Sequence[Finding]) -> list[Counterfactual]:
    """Return what the price of contention was replayed with; its upper end too, where that is a range."""
    fix = fix_of_all("contention")
    assert fix is not None
    if not any(one.kind == "price_range" for finding in contended for one in finding.evidence):
        return [(fix,)]
    stops = model.host_stops()
    measured = stops is not None and stops.cores is not None
    return [(fix,), Undisturbed.ENOUGH_CORES if measured else Undisturbed.USUAL]


def is_grown_contention(longer: KairWarning) -> bool:
    """Return whether contention that was found may be why steps became longer."""
    return CONTENTION_US in longer.figures
