"""Decides whether the accused hold up the job: a permutation test, looked at again and again, and the arms' effects.

Decides the same where nobody is accused and a random half of the ranks is delayed in each step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from statistics import NormalDist
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.confirm.estimate import (
    ARMS,
    SHOWN_ERROR,
    Estimate,
    Recorded,
    Residuals,
    arm_doses,
    arms_of,
    before,
    effect_row,
    effects_of,
    estimated,
    fitted,
    residuals_of,
)
from kair_engine.ranks import Rank
from kair_engine.results.confirm import ConfirmResult, ConfirmVerdict, DelayEffect, DelayPlace
from kair_engine.stats import MAD_TO_SIGMA, mad, student_t_tail

FIRST_LOOK: Final = 12
"""Steps with the accused delayed, and as many with all others, before the first look."""
LOOK_EVERY: Final = 10
"""Steps."""
LEVEL: Final = 0.004
"""Of one look; some 25 of them decide wrongly in about 1 of 80 runs."""
HALF: Final = 0.5
"""Of the dose: an effect above it is that of all of the dose, one below it of none."""
SHUFFLES: Final = 1999
POWER: Final = 0.95
_REACH: Final = NormalDist().inv_cdf(1 - LEVEL / 2) + NormalDist().inv_cdf(POWER)
"""Standard errors that a difference needs to be found with that power."""


def decided(recorded: Recorded, place: DelayPlace) -> ConfirmResult:
    """Return what the steps say of the accused at the first look that decides, else at the last step.

    To follow a running job, ask again with all steps from the first on: what was decided stays. Raises ValueError
    where nobody is accused.
    """
    if not recorded.accused:
        raise ValueError("nobody is accused: ask which rank it is")
    for steps in looks(recorded):
        result = _conclusion(recorded.first(steps), place, decides=True)
        if result.verdict != "open":
            return result
    return _conclusion(recorded, place, decides=False)


def looks(recorded: Recorded) -> range:
    """After how many steps it is looked at whether they decide."""
    arms = arms_of(recorded)
    least = np.minimum(np.cumsum(arms == 0), np.cumsum(arms == 1))
    enough = np.flatnonzero(least >= FIRST_LOOK)
    # The step after the last delayed one has to be there too.
    return range(int(enough[0]) + 2, len(arms) + 1, LOOK_EVERY) if len(enough) else range(0)


def _conclusion(recorded: Recorded, place: DelayPlace, decides: bool) -> ConfirmResult:
    doses = arm_doses(recorded)
    found = residuals_of(recorded, place)
    estimates, _ = effects_of(doses, found)
    difference = _difference(doses, found) if found else None
    verdict = _verdict(difference, estimates) if decides and difference else "open"
    others = tuple(rank for rank in recorded.ranks if rank not in recorded.accused)
    rows = tuple(
        effect_row(arm, ranks, dose, estimate)
        for arm, ranks, dose, estimate in zip(
            ARMS, (recorded.accused, others, recorded.ranks), doses, estimates, strict=True
        )
    )
    return summed_up(
        recorded,
        place,
        found,
        rows,
        difference=difference,
        verdict=verdict,
        held_up_by=recorded.accused if verdict == "confirmed" else (),
        complement=rows[1],
    )


@dataclass(frozen=True)
class _Difference:
    """What one kind of delayed steps took more than another, and how likely as much is by chance."""

    us: float
    error_us: float
    chance: Callable[[], float]
    """Asked only where all else allows a verdict: it takes most of the time."""

    @cached_property
    def p(self) -> float:
        return self.chance()

    @property
    def would_see_us(self) -> float:
        return _REACH * self.error_us

    def steps_needed(self, steps: int, dose_us: float) -> int | None:
        """How many more at this rate: to see a whole dose, then to see as little as there is."""
        size = dose_us if self.would_see_us > dose_us else abs(self.us)
        return ceil(steps * max((self.would_see_us / size) ** 2 - 1, 0)) if size > self.error_us else None


def _difference(doses: list[Floats], found: Residuals) -> _Difference | None:
    """Of the accused and all others, by shuffling which of both was delayed: no model has to be right for that.

    The growth is that without what both arms have in common. In which of two steps it shows depends on the place,
    and is learnt from all delayed steps together, which shuffling cannot change.
    """
    accused, others, every = doses
    either = accused + others
    fit = fitted([either, before(either), every, before(every), *found.controls], found)
    if fit is None:
        return None
    share = _share_now(fit.values[:2] + fit.values[2:4])
    use = (either > 0) & found.counts
    use[:-1] &= found.counts[1:]
    use[-1] = False
    steps = np.flatnonzero(use)
    labels: Bools = accused[steps] > 0
    if not 0 < np.count_nonzero(labels) < len(labels):
        return None
    values = share * fit.left_us[steps] + (1 - share) * fit.left_us[steps + 1]
    error = float(values.std()) * float(1 / labels.sum() + 1 / (~labels).sum()) ** 0.5
    return _Difference(float(_apart(values, labels)), error, lambda: _chance(values, labels))


def _share_now(lags: Floats) -> float:
    """Of what delays add to the step and the one after: the share of the step itself."""
    now, after = np.maximum(lags, 0).tolist()
    return float(now / (now + after)) if now + after > 0 else 1.0


def _chance(values: Floats, labels: Bools) -> float:
    """How often shuffled labels set the values as far apart. The same steps give the same answer, whoever asks."""
    shuffled = np.random.default_rng(0).permuted(np.tile(labels, (SHUFFLES, 1)), axis=1)
    as_far = np.count_nonzero(np.abs(_apart(values, shuffled)) >= abs(_apart(values, labels)) * (1 - 1e-9))
    return float((1 + as_far) / (1 + SHUFFLES))


def _apart(values: Floats, labels: Bools) -> Floats:
    """Return the mean of the labelled less that of the others."""
    chosen = labels.sum(axis=-1)
    sums = labels @ values
    return np.asarray(sums / chosen - (values.sum() - sums) / (len(values) - chosen))


def _verdict(difference: _Difference, estimates: list[Estimate | None]) -> ConfirmVerdict:
    """Return the row of the table that the arms' effects are in."""
    accused, others, every = (one.interval(LEVEL) if one else (-np.inf, np.inf) for one in estimates)
    if accused[0] > HALF and others[0] > HALF:
        return "shared"
    # All together cannot add more than both apart; few steps show it, so it only may not contradict.
    if max(accused[1], others[1]) < HALF and every[0] < HALF:
        return "not_here"
    verdict: ConfirmVerdict
    if difference.us > 0:
        verdict, (critical, slack), low = "confirmed", (estimates[0], estimates[1]), accused[0]
    else:
        verdict, (critical, slack), low = "withdrawn", (estimates[1], estimates[0]), others[0]
    clear = critical is not None and slack is not None and low > 0 and critical.value > HALF > slack.value
    # Within two errors no shuffling finds as little as the level.
    return verdict if clear and abs(difference.us) > 2 * difference.error_us and difference.p < LEVEL else "open"


def which_rank(recorded: Recorded, place: DelayPlace) -> ConfirmResult:
    """Which rank holds up the job, where a random half is delayed in each step. Rows: the largest effect first.

    Confirmed: one rank's effect is larger than each other's, and most of the dose. Shared: all ranks together count,
    and none of them most. All intervals hold together.
    """
    ranks = len(recorded.ranks)
    found = residuals_of(recorded, place)
    doses = list(np.nan_to_num(np.where(recorded.planned_us > 0, recorded.dose_us, 0)))
    total = np.sum(doses, axis=0)
    (together,), of_total = effects_of([total], found)
    share = _share_now(of_total.values[:2]) if of_total else 1.0
    columns = [share * dose + (1 - share) * before(dose) for dose in doses]
    fit = fitted([*columns, *found.controls], found) if found and of_total else None
    estimates = [
        estimated(fit, found, dose, slice(at, at + 1)) if fit and found else None for at, dose in enumerate(doses)
    ]
    rows = [
        effect_row("rank", (rank,), dose, estimate, SHOWN_ERROR / ranks)
        for rank, dose, estimate in zip(recorded.ranks, doses, estimates, strict=True)
    ]
    known = [estimate for estimate in estimates if estimate]
    if not fit or together is None or len(known) < ranks:
        return summed_up(recorded, place, found, tuple(rows))
    order = np.argsort([-estimate.value for estimate in known], kind="stable").tolist()
    rows = [rows[at] for at in order]
    covariance = fit.covariance
    largest, second = order[:2]
    apart = known[largest].value - known[second].value
    error = float(covariance[largest, largest] + covariance[second, second] - 2 * covariance[largest, second])
    error = max(error, 0.0) ** 0.5
    # Any rank can come out first.
    p = min(1.0, ranks * (ranks - 1) * student_t_tail(apart / error, known[largest].n - 1)) if error else 1.0
    difference = _Difference(apart * recorded.asked_us, error * recorded.asked_us, lambda: p)
    level = LEVEL / ranks
    highs = [estimate.interval(level)[1] for estimate in known]
    # Of both steps together: what is made up for in the next one adds up to nothing.
    all_low, all_high = (ranks * end for end in together.interval(LEVEL))
    verdict: ConfirmVerdict = "open"
    if all_high < HALF:
        verdict = "not_here"
    elif all_low > HALF and max(highs) < HALF:
        verdict = "shared"
    elif all_low > 0 and known[largest].value > HALF and p < LEVEL:
        verdict = "confirmed"
    held_up_by = (recorded.ranks[largest],) if verdict == "confirmed" else ()
    return summed_up(recorded, place, found, tuple(rows), difference=difference, verdict=verdict, held_up_by=held_up_by)


def summed_up(
    recorded: Recorded,
    place: DelayPlace,
    found: Residuals | None,
    rows: tuple[DelayEffect, ...],
    *,
    difference: _Difference | None = None,
    verdict: ConfirmVerdict = "open",
    held_up_by: tuple[Rank, ...] = (),
    complement: DelayEffect | None = None,
) -> ConfirmResult:
    """Return the result with these effects; without a difference, of nothing that was to be decided."""
    steps = recorded.ends_us.shape[1]
    of = complement or DelayEffect("others", (), 0, 0.0)
    growths = of.growth_us, of.growth_high_us, of.growth_low_us
    saving, low, high = (None if growth is None else of.dose_us - growth for growth in growths)
    needed = difference.steps_needed(steps, recorded.asked_us) if difference else None
    return ConfirmResult(
        accused=recorded.accused,
        place=place,
        dose_us=recorded.asked_us,
        effects=rows,
        p=difference.p if difference else None,
        verdict=verdict,
        held_up_by=held_up_by,
        saving_us=saving,
        saving_low_us=low,
        saving_high_us=high,
        would_see_us=difference.would_see_us if difference else None,
        steps_needed=needed if verdict == "open" else 0,
        steps_covered=steps,
        steps_used=int(np.count_nonzero(found.counts)) if found else 0,
        noise_us=_noise(found),
        cost_us=sum(max(row.growth_us or 0.0, 0.0) * row.n for row in rows),
    )


def _noise(found: Residuals | None) -> float | None:
    fit = fitted(found.controls, found.undelayed) if found else None
    return None if found is None or fit is None else MAD_TO_SIGMA * mad(fit.left_us[found.free])


def noise_us(recorded: Recorded, place: DelayPlace) -> float | None:
    """Return the standard deviation of undelayed steps that self times do not explain; None where too few steps are
    known.

    Before an order, where no doses are planned, it says how large one has to be.
    """
    return _noise(residuals_of(recorded, place))
