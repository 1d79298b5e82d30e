"""Decides when to do what about a straggler: a policy maps a view of the job to one action or none.

Thresholds follow AntDT, whose own are not public; validation/reports/mitigation.md has their gains. A user's own policy
is a class with `decide`; `loading` finds it by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, Protocol

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_mitigate.policy import prices
from kair_mitigate.policy.prices import RestartPrice, StepPrice
from kair_mitigate.policy.rates import LONG_WINDOW, WEIGHT, Fit, Rates
from kair_mitigate.policy.split import half_way, least_time, split, split_in_micro_batches

Kind = Literal["none", "adjust_bs", "backup_workers", "adjust_lr", "kill_restart", "claim"]

DEAD_BAND = 0.05
"""Smallest share of a step worth acting for: at 2 %, healthy jobs are resized 16 times in 1,000 steps."""
FEWEST_COUNTED = 3
"""Counted steps of a plan before the next one is made."""
REPLAYED = 20
"""Counted steps in which sizes must have paid: with 10, noise resizes a healthy job of 64 ranks now and then."""
SLOW = 1.3
"""A unit is slow if it takes this many times as long as in its own best long window."""
HEAVY = 0.25
"""A restart includes everything that has cost at least this share of the costliest."""
ASSUMED_SHARE = 0.4
"""Pessimistic share of computing that is independent of the batch, unless another is given."""


@dataclass(frozen=True, slots=True)
class View:
    """A policy's view of the job after a step; arrays have one entry per unit."""

    step: int
    steps_left: int
    sizes: Ints
    """Samples by the newest plan, in force or pending."""
    pending: bool
    """Whether that plan is not in force yet."""
    lowest: Ints
    highest: Ints
    """Bounds of the samples; the upper one is due to the memory of a micro-batch."""
    rates: Rates
    compute_s: Floats
    """Seconds of computing in this step."""
    done: Ints
    """Samples done in this step."""
    restart_s: float | None = None
    """Seconds of a restart; None if the job cannot be restarted."""
    lost_steps: float = 0.0
    """Steps repeated after a restart."""
    most_micro_batches: int = 8
    """Most micro-batches of a unit per step; 1 if all units must take the same number."""
    has_deadline: bool = False
    """Whether units already stop at a deadline."""
    claims: bool = False
    """Whether ranks claim their samples during a step, which makes sizes irrelevant."""
    can_claim: bool = False
    """Whether ranks could claim."""
    can_adjust_lr: bool = False
    """Whether the global batch can change: the loader knows the optimizer."""
    slow_network: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Units of the host that a slow network is blamed on, if any."""

    @property
    def batch(self) -> int:
        """Return the samples of a global batch."""
        return int(self.sizes.sum())


@dataclass(frozen=True, slots=True)
class Action:
    """What to do; sizes are None if they stay."""

    kind: Kind = "none"
    sizes: Ints | None = None
    micro_batches: Ints | None = None
    """Parts in which each unit takes its samples; None if that stays."""
    units: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The units concerned."""
    deadline: float | None = None
    """Units stop after this many times the median unit's computing time."""
    spare: int = 0
    """Number of slowest units that are not waited for."""
    by_ranks: bool = False
    """Whether ranks compute these sizes themselves for the next step, from the speeds sent with gradients."""
    learning_rate: Literal["linear", "sqrt", "keep"] = "linear"
    """How the learning rate follows the global batch, which `adjust_lr` may change."""
    price: StepPrice | RestartPrice | None = None
    reason: Mapping[str, float] = field(default_factory=dict)


NOTHING = Action()


class Policy(Protocol):
    """Decides after each step of one job, and may keep state. A user's own is created without arguments."""

    def decide(self, view: View) -> Action:
        """Return the action for this view of the job, `Action()` for none."""
        ...


class Static:
    """Changes nothing."""

    def decide(self, view: View) -> Action:  # noqa: ARG002
        """Return no action."""
        return NOTHING


class EachStep:
    """Resizes after every step, by an exponential mean of the units' speeds, without a threshold (like LB-BSP)."""

    def __init__(self, *, by_ranks: bool = False) -> None:
        """`by_ranks`: speeds are sent with every gradient and all ranks compute the same sizes, without a delay."""
        self._slope: Floats | None = None
        self._by_ranks = by_ranks

    def decide(self, view: View) -> Action:
        """Return the sizes for the mean speeds, if they differ from the newest plan."""
        seen = view.compute_s / np.maximum(view.done, 1)
        self._slope = seen if self._slope is None else self._slope + WEIGHT * (seen - self._slope)
        wanted = split(np.zeros_like(seen), self._slope, view.batch, view.lowest, view.highest)
        if len(wanted) == 1 or np.array_equal(wanted, view.sizes):
            return NOTHING
        return replace(_adjusted(view, wanted, None), by_ranks=self._by_ranks)


class BackupWorkers:
    """Does not wait for the slowest units, by default one in 16."""

    def __init__(self, spare: int | None = None) -> None:
        self._spare = spare
        self._decided = False

    def decide(self, view: View) -> Action:
        """Return the action at the first step, then none."""
        units = len(view.sizes)
        if self._decided or units == 1:
            return NOTHING
        self._decided = True
        spare = max(units // 16, 1) if self._spare is None else self._spare
        return Action("backup_workers", spare=spare, reason={"spare": float(spare), "units": float(units)})


class Deterministic:
    """Chooses sizes and micro-batches for units of constant, different speeds: once, after the long window (DD).

    `view.highest` limits a micro-batch; a unit takes up to `most_micro_batches` of them, under FSDP only 1.
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
        """Return the best sizes once the long window is full, if they save more than the dead band, until they are in
        force.
        """
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
        # Each further micro-batch costs as much as the samples of the fixed part.
        work = sizes + (micro - 1) * fit.fixed_samples
        price = prices.resizing(view.rates.recent(LONG_WINDOW), view.sizes, work, fit, self._fixed_share)
        return NOTHING if price.saving < self._dead_band else _adjusted(view, sizes, price, micro)


class Continuous:
    """Resizes for lasting slowness, restarts what resizing cannot recover, and can use a deadline (ND).

    One object serves one job: it accumulates the cost of slow units.
    """

    def __init__(
        self, deadline: float | None = None, dead_band: float = DEAD_BAND, fixed_share: float = ASSUMED_SHARE
    ) -> None:
        """`deadline` in medians of the units' computing time, such as 1.25; `fixed_share` as in `prices.resizing`."""
        self._deadline = deadline
        self._dead_band = dead_band
        self._fixed_share = fixed_share
        self._lost_s: Floats | None = None

    def decide(self, view: View) -> Action:
        """Return a restart if it breaks even, else the deadline, else new sizes, if they save enough."""
        if not view.rates.counted:
            return NOTHING
        fit = view.rates.fitted()

        # Most steps call for no other sizes, which take a third of a policy's time to work out.
        @cache
        def wanted() -> Ints:
            return split(fit.fixed_s, fit.slope_s, view.batch, view.lowest, view.highest)

        restart = self._restart(view, fit, wanted)
        if restart is not None:
            return restart
        if view.claims or view.pending or len(view.sizes) == 1:
            return NOTHING
        if view.rates.counted < FEWEST_COUNTED or view.rates.rows < REPLAYED:
            return NOTHING
        return self._leave_off(view, fit) or self._resize(view, fit, wanted) or NOTHING

    def _resize(self, view: View, fit: Fit, sizes_for: Callable[[], Ints]) -> Action | None:
        """Return sizes by the short window, if they pay at its levels and would have paid in the last steps."""
        now_s = float(fit.times(view.sizes).max())
        least_saved_s = self._dead_band * (now_s + view.rates.rest_s)
        if now_s - least_time(fit.fixed_s, fit.slope_s, view.batch) < least_saved_s:
            return None
        wanted = sizes_for()
        if now_s - float(fit.times(wanted).max()) < least_saved_s:
            return None
        recent = view.rates.recent(REPLAYED)
        if prices.resizing(recent, view.sizes, wanted, fit, self._fixed_share).saving < self._dead_band:
            return None
        # A half move shows the fixed part first; its benefit is judged by the whole move.
        sizes = wanted if fit.two_sizes.any() else half_way(view.sizes, wanted)
        return _adjusted(view, sizes, prices.resizing(recent, view.sizes, sizes, fit, self._fixed_share))

    def _leave_off(self, view: View, fit: Fit) -> Action | None:
        """Return the deadline, if none is in force and it would have paid in the last steps."""
        if self._deadline is None or view.has_deadline:
            return None
        price = prices.deadline(view.rates.recent(REPLAYED), view.sizes, fit.fixed_samples, self._deadline)
        if price.saving < self._dead_band:
            return None
        reason = {"deadline": self._deadline, "saving": price.saving}
        return Action("backup_workers", deadline=self._deadline, price=price, reason=reason)

    def _restart(self, view: View, fit: Fit, wanted: Callable[[], Ints]) -> Action | None:
        """Return a restart of the costliest units, and of the host with the slow network, if it pays."""
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
            prices.replayed_s(recent, wanted(), fit.fixed_samples),
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

    def _add_losses(self, view: View, fit: Fit, wanted: Callable[[], Ints], best: Fit, best_rest: float) -> Floats:
        """Return the seconds that each slow unit, and last the network, has cost since it became slow, beyond the best
        sizes.

        The joint cost of slow units is divided by the speed that each has lost. A unit that recovers starts from 0.
        """
        if self._lost_s is None:
            self._lost_s = np.zeros(len(view.sizes) + 1)
        slow = fit.slope_s > SLOW * best.slope_s
        slow_network = bool(len(view.slow_network)) and view.rates.rest_s > SLOW * best_rest
        self._lost_s[:-1][~slow] = 0.0
        if slow.any():
            restored = _restored(fit, best, slow)
            sizes = split(restored.fixed_s, restored.slope_s, view.batch, view.lowest, view.highest)
            lost_s = float(fit.times(wanted()).max() - restored.times(sizes).max())
            speed = 1 / best.slope_s[slow] - 1 / fit.slope_s[slow]
            self._lost_s[:-1][slow] += max(lost_s, 0.0) * speed / speed.sum()
        self._lost_s[-1] = self._lost_s[-1] + view.rates.rest_s - best_rest if slow_network else 0.0
        return self._lost_s


class Claims:
    """Lets ranks claim their samples during a step, and restarts what claims cannot recover.

    If ranks cannot claim, it requests claims once, so that the reason is reported, and then acts like Continuous.
    """

    def __init__(self) -> None:
        self._continuous = Continuous()
        self._asked = False

    def decide(self, view: View) -> Action:
        """Request claims until ranks claim; otherwise decide like the continuous policy."""
        if view.claims or len(view.sizes) == 1 or (self._asked and not view.can_claim):
            return self._continuous.decide(view)
        self._asked = True
        decided = self._continuous.decide(replace(view, claims=True))  # actions for what claims cannot recover
        asks = decided.kind == "none" and not view.pending
        return Action("claim", reason={"units": float(len(view.sizes))}) if asks else decided


def _restored(fit: Fit, best: Fit, units: Bools) -> Fit:
    """Return the fit with these units at their best speed so far."""
    slope = np.where(units, np.minimum(fit.slope_s, best.slope_s), fit.slope_s)
    return Fit(fit.fixed_samples * slope, slope, fit.two_sizes)


def _adjusted(view: View, sizes: Ints, price: StepPrice | None, micro_batches: Ints | None = None) -> Action:
    """Return the action that gives the units these sizes."""
    units = np.flatnonzero(sizes != view.sizes)
    reason = {"units": float(len(units)), "moved": float(np.abs(sizes - view.sizes).sum() // 2)}
    if price is not None:
        reason |= {"now_s": price.now_s, "after_s": price.after_s, "saving": price.saving}
    return Action("adjust_bs", sizes=sizes, micro_batches=micro_batches, units=units, price=price, reason=reason)
