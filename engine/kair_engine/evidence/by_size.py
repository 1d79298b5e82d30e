"""Decides parts by size: whether a measured quantity makes the rank's steps longer by as much as they are, and only
then.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.evidence.case import (
    CLOSE,
    FEWEST_PLACEBOS,
    LEVEL,
    ORDER,
    Case,
    mean_of,
)
from kair_engine.evidence.contrasts import Looked, holds, peers_of, predicted_us
from kair_engine.evidence.parts import Sign, Size
from kair_engine.evidence.series import Series
from kair_engine.frozen import dataclass
from kair_engine.results.evidence import Explanation
from kair_engine.stats import known_median

_HALF = 0.5
_FEW = 5
"""With fewer windows of either kind their order is not tested."""


def by_size(case: Case) -> Explanation | None:
    """Return what the part's size says; None if no measure of its size was read."""
    size = next((one for one in case.part.sizes if case.readings.of(one.measure, case.rank)), None)
    if size is None:
        return None
    named = case.readings.of(size.measure, case.rank, size.texts)
    series = named or case.readings.of(size.measure, case.rank)
    looked = case.looked(series, [sign.measure for some in case.part.signs for sign in some])
    seen = _seen(case, size, looked)
    if seen is None:
        return None
    mine = case.mine(looked)
    explanation = replace(
        case.explanation(size.measure, series),
        own=mean_of(seen.value[0][mine]),
        peers=mean_of(peers_of(seen.value)[0][mine]),
        # Only windows that are judged: a mean over others, which lack peers, could contradict the verdict.
        before=mean_of(seen.value[0][seen.sure[0] & ~mine]) if case.onset_ns() is not None else None,
        predicted_us=mean_of(seen.more[0][mine]),
        text=_what_it_says(case, named, looked),
        fired=seen.fired,
        tried=seen.tried,
        p_value=(seen.fired + 1) / (seen.tried + 1) if seen.tried >= FEWEST_PLACEBOS else None,
    )
    return _judged(case, explanation, seen, looked, is_sampled=case.sampled(series, looked))


def by_signs(case: Case) -> Explanation | None:
    """Return whether a sign shows, for a part whose size was not read; None if no sign was read either."""
    part = case.part
    is_sized = any(case.readings.of(size.measure, case.rank) for size in part.sizes)
    if is_sized or (part.sizes and not part.shows_itself):
        return None
    signs = [sign for some in part.signs for sign in some]
    explanations = [_sign(case, one) for one in signs if case.readings.of(one.measure, case.rank, one.texts)]
    return min(explanations, key=lambda one: ORDER.index(one.word)) if explanations else None


def _sign(case: Case, sign: Sign) -> Explanation:
    """Return whether the rank shows the sign and its peers do not."""
    series = case.readings.of(sign.measure, case.rank, sign.texts)
    looked = case.looked(series)
    mine, held = case.mine(looked), holds(looked, sign, 0.0)
    values, here = looked.values(sign.measure, sign.combined, sign), mine & held.known[0]
    explanation = replace(
        case.explanation(sign.measure, series),
        own=mean_of(values[0][mine]),
        peers=mean_of(peers_of(values)[0][mine]),
    )
    if here.any() and _mostly(case, held.there[0][here]):
        return replace(explanation, word="consistent")
    return replace(explanation, word="excluded") if case.sampled(series, looked) else explanation


@dataclass(frozen=True)
class _Seen:
    """A part's rule on the accused rank (row 0) and on healthy ranks; matrices are (ranks × windows)."""

    value: Floats
    more: Floats
    """Predicted excess per step, in µs."""
    fires: Bools
    sure: Bools
    """Whether every needed measure was read."""
    lacks_sign: bool
    """Whether a required sign was never read on the accused rank."""

    @property
    def fired(self) -> int:
        """Return in how many windows of healthy ranks the rule holds."""
        return int((self.fires & self.sure)[1:].sum())

    @property
    def tried(self) -> int:
        """Return how many windows of healthy ranks could be judged."""
        return int(self.sure[1:].sum())


def _seen(case: Case, size: Size, looked: Looked) -> _Seen | None:
    more = predicted_us(looked, size)
    if np.isnan(more[0]).all():
        return None
    least = case.measured_us / CLOSE
    with np.errstate(invalid="ignore"):
        fires, sure, lacks = more >= least, ~np.isnan(more), False
    for some in case.part.signs:
        held = [holds(looked, sign, least) for sign in some]
        held = [one for one in held if one.known[0].any()]
        if not held:
            lacks = True
            continue
        fires &= np.logical_or.reduce([one.there for one in held])
        sure &= np.logical_or.reduce([one.known for one in held])
    return _Seen(looked.values(size.measure, size.combined, size), more, fires, sure, lacks)


def _what_it_says(case: Case, series: Sequence[Series], looked: Looked) -> str | None:
    """Return the text that counts most during the finding, from text-labelled counters of the size or the signs."""
    mine = case.mine(looked)
    signs = [sign for some in case.part.signs for sign in some if sign.texts is not None]
    named = [*series, *(one for sign in signs for one in case.readings.of(sign.measure, case.rank, sign.texts))]
    sums = {one.text: float(np.nansum(one.over(looked.edges_ns)[mine])) for one in named if one.text is not None}
    return max(sums, key=lambda text: sums[text]) if sums else None


def _judged(case: Case, explanation: Explanation, seen: _Seen, looked: Looked, *, is_sampled: bool) -> Explanation:
    """Return the explanation with its word, judged by the windows in which the finding shows."""
    mine = case.mine(looked)
    here = mine & seen.sure[0]
    absent = replace(explanation, word="excluded") if is_sampled else explanation
    predicted = explanation.predicted_us
    if predicted is None or predicted < case.measured_us / CLOSE:
        return explanation if predicted is None else absent
    if seen.lacks_sign or not here.any():
        return explanation
    if not _mostly(case, seen.fires[0][here]):
        return absent
    if explanation.p_value is not None and explanation.p_value > LEVEL:
        return replace(explanation, word="seen")
    more = predicted - _before_us(case, seen, mine)
    if more < case.measured_us / CLOSE or not _comes_and_goes(case, seen, looked):
        return replace(explanation, word="seen")
    fits = more <= case.measured_us * CLOSE
    return replace(
        explanation, word="explains" if fits and explanation.p_value is not None else "consistent", predicted_us=more
    )


def _mostly(case: Case, fires: Bools) -> bool:
    """Return whether the rule holds often enough: in at least half of the windows, or in any if the finding is
    intermittent.
    """
    return bool(fires.any() if case.finding.pattern == "intermittent" else fires.mean() >= _HALF)


def _before_us(case: Case, seen: _Seen, mine: Bools) -> float:
    """Return the excess (µs) that the part predicted before the onset already, which did not cause it."""
    if case.onset_ns() is None:
        return 0.0
    return max(mean_of(seen.more[0][seen.sure[0] & ~mine]) or 0.0, 0.0)


def _comes_and_goes(case: Case, seen: _Seen, looked: Looked) -> bool:
    """Return whether windows with the part are slower than windows without (Mann-Whitney), if there are enough."""
    course = case.known.course
    at = np.flatnonzero(course.ranks == case.rank)
    if course.own_us is None or not len(at) or case.onset_ns() is not None:
        return True
    window = np.searchsorted(looked.edges_ns, course.begin_ns, side="right") - 1
    inside = (window >= 0) & (window < looked.windows)
    others = np.isin(course.ranks, looked.ranks[1:])
    over = course.own_us[:, at[0]] - (known_median(course.own_us[:, others].T) if others.any() else 0.0)
    inside &= ~np.isnan(over)  # drop steps that the rank or all its peers skipped
    steps = np.bincount(window[inside], minlength=looked.windows)
    with np.errstate(invalid="ignore", divide="ignore"):
        later = np.bincount(window[inside], over[inside], looked.windows) / steps
    known = seen.sure[0] & (steps > 0)
    with_it, without = later[known & seen.fires[0]], later[known & ~seen.fires[0]]
    if min(len(with_it), len(without)) < _FEW:
        return True
    from scipy.stats import mannwhitneyu  # slow to load and rarely needed

    return bool(mannwhitneyu(with_it, without, alternative="greater").pvalue <= LEVEL)
