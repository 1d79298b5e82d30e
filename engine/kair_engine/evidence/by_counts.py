"""Decides parts by counters and gauges whose cost is unknown: more errors than on peers, or more growth."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.evidence.case import (
    CLOSE,
    FEWEST_PLACEBOS,
    LEVEL,
    ORDER,
    Case,
    mean_of,
)
from kair_engine.evidence.contrasts import peers_of
from kair_engine.evidence.series import Series
from kair_engine.results.evidence import Explanation, Word
from kair_engine.stats import binomial_tail

_FEWEST_WINDOWS = 10
"""With fewer windows no trend is tested."""
_WORTH_TELLING = 0.01
"""Fraction of its first value that a gauge must grow by: allocators and caches level off on all ranks alike."""


def by_counts(case: Case) -> Explanation | None:
    """Return the strongest explanation by any counter of the part that was read; None if none was."""
    explanations = []
    for measure in case.part.counts:
        series = case.readings.of(measure, case.rank)
        if series:
            explanations.append(_counted(case, measure, series))
    return min(explanations, key=lambda one: (ORDER.index(one.word), one.p_value or 1.0)) if explanations else None


def _counted(case: Case, measure: str, series: Sequence[Series]) -> Explanation:
    """Compare a rank's count with its peers' (conditional test of Poisson rates: each rank is equally likely to count
    one more).
    """
    looked = case.looked(series)
    mine = case.mine(looked)
    length_s = np.diff(looked.edges_ns) / 1e9
    rates = looked.values(measure, "sum")
    known, counts = ~np.isnan(rates), np.nan_to_num(rates) * length_s
    own, seconds = float(counts[0][mine].sum()), float(length_s[mine].sum())
    others = counts[1:][:, mine].sum(axis=1)[known[1:].any(axis=1)]
    explanation = replace(
        case.explanation(measure, series),
        own=own / seconds,
        peers=float(np.median(others)) / seconds if len(others) else None,
    )
    if not own:
        return replace(explanation, word="excluded") if case.sampled(series, looked) else explanation
    chance = binomial_tail(math.ceil(own), math.ceil(own + others.sum()), 1 / (len(others) + 1))
    if not len(others) or chance > LEVEL or own <= others.max():
        return replace(explanation, word="seen")
    fires = counts[1:] >= own / max(int(mine.sum()), 1) / CLOSE
    fired, tried = int((fires & known[1:]).sum()), int(known[1:].sum())
    p_value = (fired + 1) / (tried + 1) if tried >= FEWEST_PLACEBOS else None
    word: Word = "seen" if p_value is not None and p_value > LEVEL else "consistent"
    return replace(explanation, word=word, fired=fired, tried=tried, p_value=p_value)


def by_growth(case: Case) -> Explanation | None:
    """Return whether a gauge grows over time more than the peers' does; None if it has none or none was read."""
    measure = case.part.grows
    series = case.readings.of(measure, case.rank) if measure is not None else []
    if measure is None or not series:
        return None
    looked = case.looked(series, readings=1)  # trends need no averaging
    values = looked.values(measure, "sum")
    peers = peers_of(values)
    # A leak costs nothing at first: it grows from before the rank is slow.
    beyond = values - peers
    # A rank need not have been read in the first window, nor in the last one.
    known = ~np.isnan(beyond[0])
    own, first = beyond[0][known], mean_of(values[0][known][:1])
    explanation = replace(
        case.explanation(measure, series),
        own=mean_of(values[0][known][-1:]),
        peers=mean_of(peers[0][known][-1:]),
        before=first,
        proofs=(),
    )
    if len(own) < _FEWEST_WINDOWS:
        return explanation
    grown = [_growth(row) for row in beyond]
    others = [abs(one) for one in grown[1:] if not math.isnan(one)]
    least = max(CLOSE * max(others, default=0.0), _WORTH_TELLING * (first or 0.0))
    if _chance_of_order(own) > LEVEL or grown[0] < least:
        return replace(explanation, word="excluded") if case.sampled(series, looked) else explanation
    return replace(explanation, word="consistent")


def _growth(values: Floats) -> float:
    """Return the mean of the last third of the known values minus that of the first third; NaN if none is known."""
    known = values[~np.isnan(values)]
    third = max(len(known) // 3, 1)
    return float(known[-third:].mean() - known[:third].mean()) if len(known) else math.nan


def _chance_of_order(values: Floats) -> float:
    """Return the probability that chance orders values so well (Mann-Kendall, one-sided, normal approximation)."""
    n = len(values)
    signs = float(np.sign(values[None, :] - values[:, None])[np.triu_indices(n, 1)].sum())
    return 0.5 * math.erfc((signs - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18) / math.sqrt(2))
