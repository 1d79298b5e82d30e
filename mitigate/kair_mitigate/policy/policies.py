"""When to do what about a straggler: policies decide, from what a view of the job shows, on one action or none.

Thresholds are after AntDT, whose own are not public; validation/reports/mitigation.md has what they gain.
A user's own policy is a class with `decide`; `loading` finds it by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_mitigate.policy import prices
from kair_mitigate.policy.prices import RestartPrice, StepPrice
from kair_mitigate.policy.rates import LONG_WINDOW, WEIGHT, Fit, Rates
from kair_mitigate.policy.split import half_way, split, split_in_micro_batches

Kind = Literal["none", "adjust_bs", "backup_workers", "adjust_lr", "kill_restart", "claim"]

DEAD_BAND = 0.05
"""A smaller share of a step saved is no reason to act: at 2 % healthy jobs are resized 16 times in 1,000 steps."""
FEWEST_COUNTED = 3
"""Steps of a plan that must have been counted before the next one is made."""
REPLAYED = 20
"""Sizes must have paid in so many counted steps: in 10, noise asks a healthy job of 64 ranks for them now and then."""
SLOW = 1.3
"""A unit is slow that takes this many times as long as in its own best long window."""
HEAVY = 0.25
"""Of what makes steps long, a restart concerns what has cost at least this share of the costliest."""
ASSUMED_SHARE = 0.4
"""At the pessimistic end this share of computing is independent of the batch, where nothing else has been told."""


@dataclass(frozen=True, slots=True)
class View:
    """What a policy sees of the job after a step; arrays have one entry per unit."""

    step: int
    steps_left: int
    sizes: Ints
    """Samples by the newest plan, in force or to come."""
    pending: bool
    """Whether that plan is yet to come into force."""
    lowest: Ints
    highest: Ints
    """Bounds of the samples; of the second the memory a micro-batch needs is the reason."""
    rates: Rates
    compute_s: Floats
    """Of this step."""
    done: Ints
    """Samples of this step."""
    restart_s: float | None = None
    """What a restart takes; None where the job cannot be restarted."""
    lost_steps: float = 0.0
    """Steps done again after a restart."""
    most_micro_batches: int = 8
    """In so many a unit can take its samples of a step; 1 where all have to take them in as many."""
    has_deadline: bool = False
    """Whether units leave off at one already."""
    claims: bool = False
    """Whether ranks claim their samples while a step runs: sizes then change nothing."""
    can_claim: bool = False
    """Whether they can."""
    can_adjust_lr: bool = False
    """Whether the global batch can change: the job's loader knows the optimizer."""
    slow_network: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Units of the host that the network's slowness is blamed on, if any."""

    @property
    def batch(self) -> int:
        """Samples of a global batch."""
        return int(self.sizes.sum())


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done; sizes are None where they stay."""

    kind: Kind = "none"
    sizes: Ints | None = None
    micro_batches: Ints | None = None
    """In how many parts each unit takes its samples; None where that stays."""
    units: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The units concerned."""
    deadline: float | None = None
    """Units leave off after this many times the median unit's computing."""
    spare: int = 0
    """So many of the slowest units are not waited for."""
    by_ranks: bool = False
    """Whether ranks compute these sizes themselves, for the next step, by the speeds that come with gradients."""
    learning_rate: Literal["linear", "sqrt", "keep"] = "linear"
    """Of `adjust_lr`, which may change the global batch: how the learning rate follows it."""
    price: StepPrice | RestartPrice | None = None
    reason: Mapping[str, float] = field(default_factory=dict)


NOTHING = Action()


class Policy(Protocol):
    """Decides after each step of one job; may remember what it has seen. A user's own is made without arguments."""

    def decide(self, view: View) -> Action:
        """Return the action for the job as it is seen, `Action()` for none."""
        ...


class Static:
    """Leaves everything as it is."""

    def decide(self, view: View) -> Action:  # noqa: ARG002
        """Nothing."""
        return NOTHING


class EachStep:
    """New sizes after every step, by an exponential mean of the units' speeds; no threshold (like LB-BSP)."""

    def __init__(self, *, by_ranks: bool = False) -> None:
        """With `by_ranks` speeds come with every gradient, and all ranks compute the same sizes: no plan is late."""
        self._slope: Floats | None = None
        self._by_ranks = by_ranks

    def decide(self, view: View) -> Action:
        """Return the sizes that the mean speeds call for, if they differ from those of the newest plan."""
        seen = view.compute_s / np.maximum(view.done, 1)
        self._slope = seen if self._slope is None else self._slope + WEIGHT * (seen - self._slope)
        wanted = split(np.zeros_like(seen), self._slope, view.batch, view.lowest, view.highest)
        if len(wanted) == 1 or np.array_equal(wanted, view.sizes):
            return NOTHING
        return replace(_adjusted(view, wanted, None), by_ranks=self._by_ranks)


class BackupWorkers:
    """Does not wait for the slowest units, one of each 16 where no number is told."""

    def __init__(self, spare: int | None = None) -> None:
        self._spare = spare
        self._decided = False

    def decide(self, view: View) -> Action:
        """Once, at the first step."""
        units = len(view.sizes)
        if self._decided or units == 1:
            return NOTHING
        self._decided = True
        spare = max(units // 16, 1) if self._spare is None else self._spare
        return Action("backup_workers", spare=spare, reason={"spare": float(spare), "units": float(units)})


class Deterministic:
    """Sizes and micro-batches for units whose speeds differ and stay: decides once, after the long window (DD).

    `view.highest` bounds a micro-batch; a unit takes up to `most_micro_batches` of them, under FSDP 1.
    """

    def __init__(
        self, most_micro_batches: int = 8, dead_band: float = DEAD_BAND, fixed_share: float = ASSUMED_SHARE
    ) -> None:
        """`fixed_share` as in `prices.resizing`."""
        self._most = most_micro_batches
        self._fixed_share = fixed_share
        self._dead_band = dead_band
        self._decided: Action | None = None

    def decide(self, view: View) -> Action:
        """Once the long window is full: the best sizes, where they save more than the dead band; until they hold."""
        if self._decided is None:
            fit = view.rates.lasting()
            if fit is None:
                return NOTHING
            self._decided = self._decision(view, fit) if len(view.sizes) > 1 else NOTHING
        if self._decided.sizes is not None and np.array_equal(self._decided.sizes, view.sizes):
            self._decided = NOTHING
        return NOTHING if view.pending else self._decided

    def _decision(self, view: View, fit: Fit) -> Action:
        most = min(self._most, view.most_micro_batches)
        sizes, micro = split_in_micro_batches(
            fit.fixed_s, fit.slope_s, view.batch, view.lowest, view.highest, most=most
        )
        # Every further micro-batch takes as long as the fixed part's samples.
        work = sizes + (micro - 1) * fit.fixed_samples
        price = prices.resizing(view.rates.recent(LONG_WINDOW), view.sizes, work, fit, self._fixed_share)
        return NOTHING if price.saving < self._dead_band else _adjusted(view, sizes, price, micro)


class Continuous:
    """Resizes what lasts, restarts what sizes cannot get back, and leaves off at a deadline if one is asked for (ND).

    One object serves one job: it adds up what the slow units have cost.
    """

    def __init__(
        self, deadline: float | None = None, dead_band: float = DEAD_BAND, fixed_share: float = ASSUMED_SHARE
    ) -> None:
        """`deadline` in medians of the units' computing (1.25 is a good one); `fixed_share` as in `prices.resizing`."""
        self._deadline = deadline
        self._dead_band = dead_band
        self._fixed_share = fixed_share
        self._lost_s: Floats | None = None

    def decide(self, view: View) -> Action:
        """Return a restart where its break-even holds, else the deadline, else other sizes, where they save enough."""
        if not view.rates.counted:
            return NOTHING
        fit = view.rates.fitted()
        wanted = split(fit.fixed_s, fit.slope_s, view.batch, view.lowest, view.highest)
        restart = self._restart(view, fit, wanted)
        if restart is not None:
            return restart
        if view.claims or view.pending or len(wanted) == 1:
            return NOTHING
        if view.rates.counted < FEWEST_COUNTED or view.rates.rows < REPLAYED:
            return NOTHING
        return self._leave_off(view, fit) or self._resize(view, fit, wanted) or NOTHING

    def _resize(self, view: View, fit: Fit, wanted: Ints) -> Action | None:
        """Sizes by the short window, if they pay by its levels and would have paid in the last steps."""
        now_s, after_s = (float(fit.times(sizes).max()) + view.rates.rest_s for sizes in (view.sizes, wanted))
        if now_s - after_s < self._dead_band * now_s:
            return None
        recent = view.rates.recent(REPLAYED)
        if prices.resizing(recent, view.sizes, wanted, fit, self._fixed_share).saving < self._dead_band:
            return None
        # Half of the first move shows the fixed part; what it is worth is asked of the whole.
        sizes = wanted if fit.two_sizes.any() else half_way(view.sizes, wanted)
        return _adjusted(view, sizes, prices.resizing(recent, view.sizes, sizes, fit, self._fixed_share))

    def _leave_off(self, view: View, fit: Fit) -> Action | None:
        """Return the deadline, if there is none yet, when it would have paid in the last steps."""
        if self._deadline is None or view.has_deadline:
            return None
        price = prices.deadline(view.rates.recent(REPLAYED), view.sizes, fit.fixed_samples, self._deadline)
        if price.saving < self._dead_band:
            return None
        reason = {"deadline": self._deadline, "saving": price.saving}
        return Action("backup_workers", deadline=self._deadline, price=price, reason=reason)

    def _restart(self, view: View, fit: Fit, wanted: Ints) -> Action | None:
        """Return a restart of the units, and of the host with the slow network, that have cost the most, if it pays."""
        best, best_rest = view.rates.best(), view.rates.best_rest_s
        if view.restart_s is None or best is None or best_rest is None:
            return None
        lost = self._add_losses(view, fit, wanted, best, best_rest)
        heavy = lost >= HEAVY * lost.max()
        already = float(lost[heavy].sum())
        if already < prices.SKI_RENTAL * view.restart_s:
            return None
        units, network = np.flatnonzero(heavy[:-1]), bool(heavy[-1])
        restored = _restored(fit, best, heavy[:-1])
        sizes = split(restored.fixed_s, restored.slope_s, view.batch, view.lowest, view.highest)
        recent = view.rates.recent(REPLAYED)
        factor = restored.slope_s / np.maximum(fit.slope_s, np.finfo(np.float64).tiny)
        rest = best_rest / view.rates.rest_s if network else 1.0
        price = prices.restarting(
            prices.replayed_s(recent, wanted, fit.fixed_samples),
            prices.replayed_s(recent, sizes, fit.fixed_samples, factor=factor, rest_factor=rest),
            view.steps_left,
            restart_s=view.restart_s,
            lost_steps=view.lost_steps,
            already_lost_s=already,
        )
        if not price.holds:
            return None
        self._lost_s = None
        concerned = np.union1d(units, view.slow_network) if network else units
        reason = {"gain_s": price.gain_s, "cost_s": price.cost_s, "already_lost_s": already}
        return Action("kill_restart", sizes=sizes, units=concerned, price=price, reason=reason)

    def _add_losses(self, view: View, fit: Fit, wanted: Ints, best: Fit, best_rest: float) -> Floats:
        """Seconds that each slow unit, and last the network, have cost since they became slow beyond the best sizes.

        What slow units cost together is shared out by the speed each has lost. Whoever recovers begins anew.
        """
        if self._lost_s is None:
            self._lost_s = np.zeros(len(wanted) + 1)
        slow = fit.slope_s > SLOW * best.slope_s
        slow_network = bool(len(view.slow_network)) and view.rates.rest_s > SLOW * best_rest
        self._lost_s[:-1][~slow] = 0.0
        if slow.any():
            restored = _restored(fit, best, slow)
            sizes = split(restored.fixed_s, restored.slope_s, view.batch, view.lowest, view.highest)
            lost_s = float(fit.times(wanted).max() - restored.times(sizes).max())
            speed = 1 / best.slope_s[slow] - 1 / fit.slope_s[slow]
            self._lost_s[:-1][slow] += max(lost_s, 0.0) * speed / speed.sum()
        self._lost_s[-1] = self._lost_s[-1] + view.rates.rest_s - best_rest if slow_network else 0.0
        return self._lost_s


class Claims:
    """Has ranks claim their samples while a step runs, and restarts what that cannot get back.

    Where ranks cannot claim, it asks once, so that it can be said why, and is the continuous policy from then on.
    """

    def __init__(self) -> None:
        self._continuous = Continuous()
        self._asked = False

    def decide(self, view: View) -> Action:
        """Ask for claims until ranks claim; beside that decide as the continuous policy."""
        if view.claims or len(view.sizes) == 1 or (self._asked and not view.can_claim):
            return self._continuous.decide(view)
        self._asked = True
        decided = self._continuous.decide(replace(view, claims=True))  # what claims cannot get back either
        asks = decided.kind == "none" and not view.pending
        return Action("claim", reason={"units": float(len(view.sizes))}) if asks else decided


def _restored(fit: Fit, best: Fit, units: Bools) -> Fit:
    """Return the fit with these units as fast as they have been at best."""
    slope = np.where(units, np.minimum(fit.slope_s, best.slope_s), fit.slope_s)
    return Fit(fit.fixed_samples * slope, slope, fit.two_sizes)


def _adjusted(view: View, sizes: Ints, price: StepPrice | None, micro_batches: Ints | None = None) -> Action:
    """Return the action that gives the units these sizes."""
    units = np.flatnonzero(sizes != view.sizes)
    reason = {"units": float(len(units)), "moved": float(np.abs(sizes - view.sizes).sum() // 2)}
    if price is not None:
        reason |= {"now_s": price.now_s, "after_s": price.after_s, "saving": price.saving}
    return Action("adjust_bs", sizes=sizes, micro_batches=micro_batches, units=units, price=price, reason=reason)
