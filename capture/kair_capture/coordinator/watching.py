"""Tests the job every few steps, and turns the results into alerts and orders to sample."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from kair_capture.coordinator.detection import (
    EVERY,
    STEPS,
    USUAL,
    Standing,
    When,
    Who,
    Z,
    computing,
    has_uneven_sizes,
    matters,
    per_sample,
    spread_of,
    waited_for,
)
from kair_capture.coordinator.endpoint import Hosts, HostState
from kair_capture.coordinator.sampling import Sampler, Window, first_step_of
from kair_capture.coordinator.step_table import Recent, Roles, StepTable
from kair_engine.arrays import Floats, Ints
from kair_engine.results.watch import Alert, AlertKind, Hang, high_slowdowns
from kair_engine.results.windows import PricedWindow
from kair_engine.stats import known_median, median
from kair_engine.timeline.batch_sizes import STEPS_OF_A_CHANGE, lasting_changes

_MOST_LOOKS: Final = 20
"""Tests that are caught up on at once, after a pause."""
STALLED_S: Final = 30.0
"""The job counts as hanging after this long without the end of a step."""
_STALLED_STEPS: Final = 20
_SILENT: Final = 1 / 3
"""After this share of that time the silence is said, though it may still be a checkpoint."""
_SUSPECT_Z: Final = 3.0
"""If the whole job became slower, ranks above this z are sampled first."""
_MOST_ALERTS: Final = 100
_MOST_NAMED: Final = 64
_MOST_LAG_S: Final = 20.0
_BEHIND_S: Final = 2.0


class Watching:
    """Knowledge of the job's speed. `turn` is called a few times a second."""

    def __init__(
        self, table: StepTable, hosts: Hosts, sampler: Sampler, roles: Roles, *, stalled_after_s: float = STALLED_S
    ) -> None:
        self._table, self._hosts, self._sampler, self.roles = table, hosts, sampler, roles
        self.stalled_after_s = stalled_after_s
        self.least = USUAL
        self.samples = True
        """Whether windows are ordered."""
        self.holds_off = False
        """Whether none are, because ranks are being delayed."""
        self._who, self._who_computes, self._when = Who(), Who(), When()
        self._looked: int | None = None
        """The last step of the last test."""
        self._block_until = -1
        self._settled_from = -1
        """From this step on, sizes are as they are now, and compilation for them is over."""
        self._tells_samples = self._is_uneven = False
        self._progress = (-1, time.monotonic())
        self._is_stalled = False
        self._attempt = table.attempt
        self.standing: Standing | None = None
        self.excess_us: dict[int, float] = {}
        """Rank → its excess per step, in µs."""
        self.step_us: float | None = None
        self.slow: set[int] = set()
        self.evened_out: set[int] = set()
        """Ranks that are slow per sample but get so few samples that no rank waits for them."""
        self._unwaited: set[int] = set()
        """Ranks that others wait for by less than half of an alert's threshold."""
        self.alerts: deque[Alert] = deque(maxlen=_MOST_ALERTS)
        self.news: deque[Alert] = deque()
        """Alerts that are not stored yet."""
        self.interval_s = 1.0
        self._lags: deque[float] = deque(maxlen=10)
        self._behind_since: float | None = None

    @property
    def usual_us(self) -> float | None:
        """Return the median step before the last ones."""
        return self._when.usual_us

    @property
    def is_stalled(self) -> bool:
        """Return whether no rank has ended a step for long, although agents live."""
        return self._is_stalled

    def silent_s(self, now: float) -> float:
        """Return for how long no step has ended, where that is long for this job; else 0."""
        silent_s = now - self._progress[1]
        return silent_s if self._progress[0] >= 0 and silent_s > _SILENT * self._patience_s else 0.0

    @property
    def _patience_s(self) -> float:
        return max(self.stalled_after_s, _STALLED_STEPS * (self.step_us or 0) * 1e-6)

    def turn(self, now: float, *, muted: bool = False) -> Window | None:
        """Run due tests; return the window to sample because of them, if any.

        `muted`: only learn, from steps before a restart.
        """
        if self._table.attempt != self._attempt:
            self._begin_attempt(muted)
        until = self._table.last_common_step
        self._note_progress(until, now, muted)
        if until < 0:
            return None
        if self._looked is None or self._table.latest.max() < self._looked:
            # The first steps, or all ranks went back to a checkpoint; a single rank may just have been heard first.
            self._looked = self._block_until = until if self._looked is not None else -1
            self._settled_from = -1
        self._looked = max(self._looked, until - _MOST_LOOKS * EVERY)
        window = None
        while until - self._looked >= EVERY:
            self._looked += EVERY
            window = self._look(self._looked, muted=muted) or window
        return window

    def _begin_attempt(self, muted: bool) -> None:
        """Start over: another attempt may have other ranks, hosts and batches, so earlier values do not compare."""
        self._attempt = self._table.attempt
        self._who, self._who_computes, self._when = Who(), Who(), When()
        self._looked, self._block_until, self._settled_from = None, -1, -1
        self.standing, self.step_us, self.excess_us = None, None, {}
        if not muted:
            self._sampler.forget_window()

    def hear(self, now: float) -> None:
        """Report hosts that became silent, or returned."""
        lost, found = self._hosts.listen(now, self.interval_s)
        for state in (*lost, *found):
            # An agent whose ranks have all ended may leave.
            if state.beat.ranks or not state.is_silent:
                self._tell_host(state)

    def _look(self, until: int, *, muted: bool) -> Window | None:
        recent = self._table.recent(STEPS, until)
        if not len(recent.ranks) or until < STEPS:
            return None
        self._note_sizes(recent)
        if until - STEPS + 1 < self._settled_from:
            return None
        recent = per_sample(recent)
        whole_block = until - STEPS >= self._block_until
        if whole_block:
            self._block_until = until
        self.standing, slow = self._stand(recent, whole_block=whole_block)
        self._is_uneven = has_uneven_sizes(recent)
        shift, z, is_longer = self._when.look(recent, whole_block=whole_block, least=self.least)
        self.step_us = float(median(known_median(recent.step_us.T)))
        if muted:
            self.slow = set(slow) & self._told_slow()
            return None
        self._sampler.budget.pass_time(self.step_us, until)
        self._tell_slow(set(slow), until)
        if is_longer:
            self._when.accept()
            excess_us = self.step_us * shift / (1 + shift)
            self._tell("longer_steps", until, (), excess=shift, z=z, excess_us=excess_us)
        return self._window(slow, is_longer)

    def _note_sizes(self, recent: Recent) -> None:
        """Note a plan's sizes: changes with them are due to the plan, and earlier values do not compare."""
        if (tells := recent.samples is not None) != self._tells_samples:
            self._who, self._who_computes, self._tells_samples = Who(), Who(), tells
        changes = [] if recent.samples is None else recent.steps[lasting_changes(recent.samples.T)].tolist()
        if changes and changes[-1] + STEPS_OF_A_CHANGE > self._settled_from:
            self._settled_from = changes[-1] + STEPS_OF_A_CHANGE
            for of in (self._who, self._who_computes, self._when):
                of.forget_past()

    def _stand(self, recent: Recent, *, whole_block: bool) -> tuple[Standing, list[int]]:
        """Return the standing by self times and by CPU times: for each rank, the test in which it stands out more."""
        role = self.roles.codes(recent.ranks)
        spread = spread_of(recent)
        found, slow = self._who.look(recent, role, whole_block=whole_block, least=self.least, spread=spread)
        least = self.least.of(found.peers)
        excess_us, waited_for = _waited_for(found, recent, recent, role)
        slow = sorted(set(slow) & set(recent.ranks[waited_for > least].tolist()))
        is_evened_out = (found.z > Z) & (found.excess > least) & (waited_for <= least) & has_uneven_sizes(recent)
        self.evened_out = set(recent.ranks[is_evened_out].tolist())
        if (cpu := computing(recent)) is not None:
            computes, more = self._who_computes.look(cpu, role, whole_block=whole_block, least=self.least)
            more_us, by_work = _waited_for(computes, cpu, recent, role)
            counts = (by_work > least) & matters(computes, recent, self.least)
            slow = sorted({*slow, *(set(more) & set(recent.ranks[counts].tolist()))})
            stands = counts & (computes.z > found.z)
            excess_us = np.where(stands, more_us, excess_us)
            excess, z = np.where(stands, computes.excess, found.excess), np.where(stands, computes.z, found.z)
            found = replace(found, excess=excess, z=z)
            waited_for = np.where(stands, by_work, waited_for)
        self._unwaited = set(recent.ranks[waited_for < least / 2].tolist())
        self.excess_us = dict(zip(recent.ranks.tolist(), excess_us.tolist(), strict=True))
        return found, slow

    def _window(self, slow: list[int], is_longer: bool) -> Window | None:
        assert self.standing is not None and self.step_us is not None
        now = time.time()  # calendar time, remembered over restarts
        if not self.samples or self.holds_off or not self._is_free() or self._is_behind(time.monotonic()):
            return None
        rows = zip(self.standing.rank.tolist(), self.standing.excess.tolist(), self.standing.z.tolist(), strict=True)
        found = sorted(((int(rank), excess, z) for rank, excess, z in rows), key=lambda one: -one[2])
        due = [(rank, excess) for rank, excess, _ in found if rank in slow and self._sampler.is_due(rank, excess, now)]
        steps = self._sampler.affordable(self.step_us, is_known=bool(due))
        if not steps or not (due or is_longer):
            return None
        suspects = due or [(rank, excess) for rank, excess, z in found if z > _SUSPECT_Z]
        return self._order(suspects, steps, now, "slow ranks" if due else "longer steps")

    def _is_behind(self, now: float) -> bool:
        """Return whether reports are old but may soon be current: an agent is catching up."""
        if max(self._lags, default=0.0) < _BEHIND_S:
            self._behind_since = None
            return False
        self._behind_since = self._behind_since or now
        return now - self._behind_since < _MOST_LAG_S

    def _order(self, suspects: list[tuple[int, float]], steps: int, now: float, why: str) -> Window | None:
        """Return a window on suspects and peers; None while no step is known."""
        ranks = self._hosts.ranks() or np.flatnonzero(self._table.latest >= 0).tolist()
        if not ranks or self.step_us is None:
            return None
        first, step_us = self.first_step(), self.step_us
        return self._sampler.order(suspects, ranks, first=first, steps=steps, step_us=step_us, now_s=now, why=why)

    def first_step(self) -> int:
        """Return a step before which an order can reach every rank."""
        latest = int(self._table.latest.max(initial=0))
        return first_step_of(latest, self.step_us or 1e6, self.interval_s, max(self._lags, default=0.0))

    def wait(self, now: float) -> None:
        """Suspend hang detection while steps cannot be stored, since it is not known whether any ends."""
        self._progress = (self._progress[0], now)

    def note_lag(self, seconds: float) -> None:
        """Note how long after its end a step was reported; long absences of an agent do not count."""
        if 0 <= seconds < _MOST_LAG_S:
            self._lags.append(seconds)

    def _is_free(self) -> bool:
        """Return whether the last window is over by as many steps as a test has."""
        window = self._sampler.window
        return window is None or self._table.last_common_step > window.last + STEPS

    def _tell_slow(self, slow: set[int], step: int) -> None:
        assert self.standing is not None
        for rank in sorted(slow - self.slow):
            at = int(np.flatnonzero(self.standing.rank == rank)[0])
            excess, z = float(self.standing.excess[at]), float(self.standing.z[at])
            excess_us = self.excess_us.get(rank)
            self._tell("slow_rank", step, (rank,), excess=excess, z=z, excess_us=excess_us, per_sample=self._is_uneven)
        for rank in sorted(self.slow - slow):
            # Not at the first passed test: a rank on the edge would come and go.
            if not self._is_below(rank):
                slow.add(rank)
                continue
            self._tell("slow_rank", step, (rank,), over=True)
        self.slow = slow

    def _told_slow(self) -> set[int]:
        """Return the ranks with an open alert."""
        last = {alert.ranks: alert.over for alert in self.alerts if alert.kind == "slow_rank"}
        return {rank for ranks, over in last.items() for rank in ranks if not over}

    def _is_below(self, rank: int) -> bool:
        """Return whether its excess is below half of an alert's threshold, or no rank waits for it any more."""
        assert self.standing is not None
        if rank in self._unwaited:
            return True
        at = np.flatnonzero(self.standing.rank == rank)
        return not len(at) or not self.standing.excess[at[0]] >= self.least.of(self.standing.peers[at])[0] / 2

    def _note_progress(self, until: int, now: float, muted: bool) -> None:
        if until != self._progress[0] or muted:
            self._progress = (until, now)
            self._is_stalled = False
            return
        lives = any(state.beat.ranks and not state.is_silent for state in self._hosts)
        if until >= 0 and lives and not self._is_stalled and now - self._progress[1] > self._patience_s:
            self._is_stalled = True

    def tell_hang(self, hang: Hang) -> None:
        """Report which ranks are missing or died, or that the job continues.

        A job that was ended on purpose raises no alert.
        """
        if hang.kind == "ended":
            return
        hosts = tuple(sorted({one.host for one in hang.ranks if one.host is not None and one.rank in hang.missing}))
        ranks = hang.missing[:_MOST_NAMED]
        alert = Alert(_now(), hang.kind, hang.step, ranks, hosts, None, None, over=hang.over, told=hang.told)
        self._alert(alert)

    def _tell_host(self, state: HostState) -> None:
        step, over = self._table.last_common_step, not state.is_silent
        self._alert(Alert(_now(), "silent_host", step, state.ranks, (state.name,), None, None, over=over))

    def tell_prices(self, windows: Sequence[PricedWindow]) -> None:
        """Report windows whose S became high, or normal again, after earlier reports."""
        earlier = [one for one in self.alerts if one.kind == "high_slowdown"]
        later = [one for one in windows if not earlier or one.at > earlier[-1].at]
        for alert in high_slowdowns(later, is_high=bool(earlier) and not earlier[-1].over):
            self._alert(alert)

    def _alert(self, alert: Alert) -> None:
        self.alerts.append(alert)
        self.news.append(alert)

    def _tell(
        self,
        kind: AlertKind,
        step: int,
        ranks: tuple[int, ...],
        *,
        excess: float | None = None,
        z: float | None = None,
        excess_us: float | None = None,
        over: bool = False,
        per_sample: bool = False,
    ) -> None:
        host_of = self._hosts.by_rank()
        hosts = tuple(sorted({host_of[rank] for rank in ranks if rank in host_of}))
        share = None if excess_us is None or not self.step_us else excess_us / self.step_us
        self._alert(Alert(_now(), kind, step, ranks, hosts, excess, z, over, per_sample, excess_us, share))


def _waited_for(found: Standing, measured: Recent, recent: Recent, role: Ints) -> tuple[Floats, Floats]:
    """Return each rank's excess per step (µs), and as a share of its usual time; infinite without a limit."""
    excess_us, is_limited = waited_for(found, measured, recent, role)
    samples = 1.0 if measured.samples is None else measured.samples
    usual_us = known_median((measured.self_us * samples).T) - excess_us
    return excess_us, np.where(is_limited, excess_us / np.maximum(usual_us, 1.0), np.inf)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
