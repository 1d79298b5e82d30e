"""Runs `kair confirm` at the coordinator: when ranks may be delayed, by which order, and when that ends.

An order is renewed unless something forbids it: a job that hangs or was restarted, a missing rank, steps that take far
too long, a spent budget, or a user.
"""

import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
import numpy as np

from kair_capture.agent.step_rows import Rows
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.experiment import Experiment, Plan
from kair_capture.coordinator.step_table import StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.delays import FIRST_STEP, TAKEN, Mode, Place, TakesDelays, to_json
from kair_capture.places import JobPlaces
from kair_capture.ring import StepFlag
from kair_capture.settings import share_in
from kair_capture.wire import Delays, Values
from kair_engine.confirm.budget import (
    BUDGET_SHARE,
    LARGEST_SHARE,
    LARGEST_US,
    Account,
    allowed_us,
    dose_us,
    require_steps,
    sweep_us,
)
from kair_engine.confirm.decide import noise_us
from kair_engine.errors import InputError
from kair_engine.ranks import Rank
from kair_engine.results.confirm import ConfirmResult, ConfirmRun
from kair_engine.trace.files import make_folder, write_whole

STEPS: Final = 400
"""Default number of steps: 9 of 10 simulated runs were decided by then."""
MOST_STEPS: Final = 20_000
MOST_ACCUSED: Final = 64
"""So that an order fits into a datagram."""
_BEFORE: Final = 200
"""Undelayed steps whose noise predicts the number of steps needed."""
_FEWEST_BEFORE: Final = 40
_LEAD: Final = 40
"""Undelayed steps before the delayed ones, for the level of the first of these."""
_SHARE_OF_ALL: Final = 0.03
"""Dose as a share of the step if no rank is accused: a larger one decides sooner and costs less, and half of the steps
pay it.
"""
_QUIET: Final = 20
"""Steps without a delay after one that took far too long."""
_MOST_QUIETS: Final = 3
_LATE: Final = 64
"""Steps to wait for ranks that report late."""
_WRITE_EVERY_S: Final = 2.0
"""Seconds after which the record is written even without a new result, so that readers see the delays continue."""


class RefusedError(Exception):
    """Raised if no rank may be delayed; the text says why, and what to do, in one line."""


class Confirming:
    """Experiments on one job, one at a time."""

    def __init__(
        self,
        places: JobPlaces,
        table: StepTable,
        hosts: Hosts,
        watching: Watching,
        *,
        allowed: bool,
        say: Callable[[str], None],
    ) -> None:
        """Take `allowed`: whether ranks without a setting may be delayed (--allow-delays)."""
        self._places, self._table, self._hosts, self._watching = places, table, hosts, watching
        self._allowed, self._say = allowed, say
        # Above those of an earlier coordinator, which ranks may know.
        self._generation = time.time_ns() // 1_000_000
        self._told = Delays(0)
        self._account = Account(0.0)
        self._now: Experiment | None = None
        self._last: Experiment | None = None
        self._run: ConfirmRun | None = None
        self._file = self._why = ""
        self._attempt = self._world_size = self._quiets = self._quiet_until = self._forecast = 0
        self._wants_worth = False
        self._excess_us = self._spent_before_us = self._written_at = 0.0

    @property
    def is_on(self) -> bool:
        """Return whether ranks are being delayed, or are about to be."""
        return self._now is not None

    @property
    def number(self) -> int:
        """Return the number of the last order, or of its end; 0 without one."""
        return self._told.number

    def order(self) -> Delays:
        """Return the present order, which agents request."""
        return self._told

    def ask(self, asked: Mapping[str, str], *, why_not: str = "") -> Values:
        """Answer a user: start (`do=start`), show the plan (`plan`), stop, or report.

        `why_not` is a reason against a start.
        """
        if asked.get("do") == "stop":
            if self._now is None:
                return Values(self._state(), "no rank is being delayed")
            self._end("stopped by hand")
        elif asked.get("do") in ("start", "plan"):
            try:
                if why_not:
                    raise RefusedError(why_not)
                plan, run = self._planned(asked)
                if asked["do"] == "plan":
                    return Values(self._terms(plan, run))
                self._begin(plan, run, wants_worth=asked.get("worth") == "1")
            except RefusedError as error:
                return Values(why_not=str(error))
            except InputError as error:
                return Values(why_not=f"{error}{error.hint and f': {error.hint}'}")
        return Values(self._state())

    def mark(self, rows: Rows) -> None:
        """Flag the steps in which a rank was to be delayed, even if it did not know."""
        for one in filter(None, (self._now, self._last)):
            steps = np.unique(rows["step"]).tolist()
            covered = np.array([step for step in steps if one.covers(step)], np.uint32)
            rows["flags"][np.isin(rows["step"], covered) & (rows["attempt"] == self._attempt)] |= int(StepFlag.DELAYED)

    def turn(self, *, why_off: str = "") -> None:
        """Process reported steps, and renew the order, or end it. `why_off` is a reason to end it."""
        one = self._now
        if one is None:
            return
        if why := why_off or self._why_off(one):
            self._end(why)
            return
        is_too_long = one.take(self._table, self._told_until(one))
        one.earn(int(self._table.latest.max(initial=0)))
        before = one.result
        one.look()
        one.settle()
        if one.result is not before or time.monotonic() - self._written_at > _WRITE_EVERY_S:
            self._write(one, "running")
        if one.is_answered:
            self._answered(one)
        elif one.is_through:
            by_order = "" if one.ordered >= one.covered else f", {one.ordered} of them within the budget"
            self._end("" if one.plan.mode is Mode.SWEEP else f"not decided in {one.covered} steps{by_order}")
        elif one.overshoot is not None:
            self._end(f"delays take {one.overshoot:.2g} times as long as ordered here: nothing can be dosed")
        elif is_too_long or one.is_ignored:
            self._pause(one, "a step took more than 3 times the median" if is_too_long else "a rank was not delayed")
        elif one.until >= self._quiet_until:
            self._renew(one)

    # Beginning.

    def _planned(self, asked: Mapping[str, str]) -> tuple[Plan, ConfirmRun]:
        """Return the plan, and its record before the first delay. Raises RefusedError, InputError."""
        if self._now is not None:
            raise RefusedError(f"kair confirm runs already (kair confirm {self._places.job} --stop)")
        watching = self._watching
        ranks = tuple(np.flatnonzero(self._table.latest >= 0).tolist())
        step_us = watching.step_us
        if step_us is None or not ranks or self._table.last_common_step < FIRST_STEP + _FEWEST_BEFORE:
            raise RefusedError(f"the job has not reported {FIRST_STEP + _FEWEST_BEFORE} steps yet")
        if len(ranks) < 2:
            raise RefusedError("the job has one rank: there is nobody to compare it with")
        self._require_allowed(ranks)
        place = _place(asked.get("place", Place.BEFORE_FORWARD))
        accused = self._accused(asked.get("ranks", ""), ranks)
        excess_us = max((watching.excess_us.get(rank, 0.0) for rank in accused), default=0.0)
        dose = _dose(asked.get("dose_us", ""), step_us, excess_us if accused else 2 * _SHARE_OF_ALL * step_us)
        most = _number(asked.get("steps", ""), "--steps", STEPS, 1, MOST_STEPS)
        budget = _budget(asked.get("budget", ""))
        mode = Mode.ARMS if accused else Mode.HALVES
        plan = Plan(accused, ranks, place, mode, (dose,), most, budget, step_us)
        until = self._table.last_common_step
        before = Experiment(plan, 0, max(until - _BEFORE, 1), until, Account(0.0))
        before.take(self._table, until)
        noise = noise_us(before.recorded(), "before_forward")
        if noise is None:
            raise RefusedError("too few of the last steps are known of all ranks")
        needed = require_steps(noise, dose, most)
        nothing: dict[str, Any] = dict.fromkeys(("p", "saving_us", "saving_low_us", "saving_high_us", "would_see_us"))
        return plan, ConfirmRun(
            **nothing,
            accused=tuple(map(Rank, accused)),
            place=place.value,
            dose_us=dose,
            effects=(),
            verdict="open",
            held_up_by=(),
            steps_needed=needed,
            steps_covered=0,
            steps_used=0,
            noise_us=noise,
            cost_us=0.0,
            job=self._places.job,
            excess_us=excess_us if accused else None,
            ranks=len(ranks),
            steps_allowed=most,
        )

    def _terms(self, plan: Plan, run: ConfirmRun) -> dict[str, str]:
        """Return what the user has to agree to: the delays, and their maximum cost."""
        last, spent_us = int(self._table.latest.max()) + plan.most_steps, self._account.spent_us
        most_us = min(allowed_us(plan.step_us, last, plan.budget) - spent_us, plan.most_steps * plan.doses_us[-1])
        return {
            "state": "planned",
            "ranks": ",".join(map(str, plan.accused)),
            "place": plan.place.value,
            "dose_us": f"{plan.doses_us[-1]:.0f}",
            "step_us": f"{plan.step_us:.0f}",
            "steps": str(plan.most_steps),
            "needed": str(run.steps_needed),
            "most_us": f"{max(most_us, 0.0):.0f}",
        }

    def _begin(self, plan: Plan, run: ConfirmRun, *, wants_worth: bool) -> None:
        self._attempt, self._world_size = self._table.attempt, self._hosts.world_size
        self._quiets, self._quiet_until, self._forecast = 0, 0, run.steps_needed or 0
        self._spent_before_us, self._excess_us = self._account.spent_us, run.excess_us or 0.0
        self._wants_worth = wants_worth and bool(plan.accused)
        self._why, self._run, self._file = "", run, f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}.json"
        self._write(self._start(plan), "running")
        who = f"rank {', '.join(map(str, plan.accused))}" if plan.accused else "a random half of the ranks"
        dose = f"{plan.doses_us[-1] / 1e3:.3g} ms"
        self._say(f"kair confirm: {who}, {plan.place.value}, by {dose}, {plan.most_steps} steps at most")

    def _start(self, plan: Plan) -> Experiment:
        begun = self._table.last_common_step
        self._now = Experiment(plan, secrets.randbits(63), max(begun - _LEAD, 1), begun, self._account)
        self._watching.holds_off = True
        return self._now

    def _require_allowed(self, ranks: tuple[int, ...]) -> None:
        delays = {one.rank: one.delays for one in self._watching.roles.reports}
        says = [delays.get(rank, TakesDelays.WHERE_ALLOWED) for rank in ranks]
        if TakesDelays.NO in says:
            rank = ranks[says.index(TakesDelays.NO)]
            raise RefusedError(f"rank {rank} takes no delays: it is not PyTorch's, or has KAIR_CAPTURE_DELAYS=0")
        if not self._allowed and TakesDelays.WHERE_ALLOWED in says:
            raise RefusedError(
                "delays are not allowed: start kair coordinator with --allow-delays, or the job with "
                "KAIR_CAPTURE_DELAYS=1"
            )

    def _accused(self, text: str, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Return the named ranks, else the slow rank with the largest excess; () if none is to be accused."""
        if text == "all":
            return ()
        if not text:
            of = self._watching.excess_us
            slow = sorted(self._watching.slow & set(ranks), key=lambda rank: -of.get(rank, 0.0))
            return tuple(slow[:1])
        if not all(one.isascii() and one.isdecimal() and len(one) < 10 for one in text.split(",")):
            raise RefusedError("ranks must be numbers")
        accused = tuple(sorted({int(one) for one in text.split(",")}))
        if unknown := set(accused) - set(ranks):
            raise RefusedError(f"rank {min(unknown)} is not among those that are heard")
        if len(accused) == len(ranks) or len(accused) > MOST_ACCUSED:
            raise RefusedError(f"some of the ranks can be accused, not all, and {MOST_ACCUSED} at most")
        return accused

    # While it runs.

    def _told_until(self, one: Experiment) -> int:
        """Return the last step that all ranks have reported, without waiting long for any."""
        latest = self._table.latest[list(one.plan.ranks)]
        return max(int(latest.min()), self._table.last_common_step - _LATE)

    def _why_off(self, one: Experiment) -> str:
        latest = self._table.latest
        living = set(self._hosts.ranks(living=True))
        if self._watching.is_stalled:
            return "no step ends any more"
        if self._table.attempt != self._attempt or int(latest.max(initial=-1)) < one.until:
            return "the job was restarted"
        if self._hosts.world_size != self._world_size:
            return "the job's world size changed"
        if living and (gone := set(one.plan.ranks) - living):
            return f"rank {min(gone)} is not heard any more"
        return ""

    def _pause(self, one: Experiment, why: str) -> None:
        """Pause delays for some steps; then draw anew, because a rank may have left the last order."""
        self._quiets += 1
        if self._quiets > _MOST_QUIETS:
            self._end(f"{why}, {self._quiets} times")
            return
        self._quiet_until = max(int(self._table.latest.max()) + _QUIET, self._watching.first_step())
        one.cut(self._quiet_until)
        one.seed, one.is_ignored = secrets.randbits(63), False
        self._tell(b"")

    def _renew(self, one: Experiment) -> None:
        latest, first = int(self._table.latest.max(initial=0)), self._watching.first_step()
        last = one.last_order
        if last is not None and last.seed == one.seed and (last.first_step > latest or first + 2 < last.last_step):
            return
        if last is not None:
            first = max(first, last.last_step + 1)
        if (order := one.lease(self._generation + 1, max(first, FIRST_STEP))) is not None:
            self._tell(to_json(order).encode())

    def _tell(self, text: bytes) -> None:
        self._generation += 1
        self._told = Delays(self._generation, text)

    # The end.

    def _answered(self, one: Experiment) -> None:
        if not (self._wants_worth and one.plan.mode is Mode.ARMS and one.result and one.result.verdict == "confirmed"):
            self._end("")
            return
        self._wants_worth = False
        try:
            doses = sweep_us(one.plan.step_us, max(self._excess_us, 2 * one.plan.doses_us[-1]))
        except InputError as error:
            self._end(str(error))
            return
        self._write(one, "running")
        one.settle(at_once=True)
        self._account, self._last = one.account, one
        self._tell(b"")
        self._start(replace(one.plan, mode=Mode.SWEEP, doses_us=doses))

    def _end(self, why: str) -> None:
        """End it: decided, unless `why` gives another reason."""
        one, self._now, self._why = self._now, None, why
        assert one is not None
        self._tell(b"")
        one.settle(at_once=True)
        self._account, self._last = one.account, one
        self._watching.holds_off = False
        self._write(one, "over", why)
        verdict = self._run.verdict if self._run is not None else "open"
        self._say(f"kair confirm is over: {why or verdict}")

    def _write(self, one: Experiment, state: Literal["running", "over"], why: str = "") -> None:
        result, run = one.result, self._run
        assert run is not None  # it was planned
        if one.plan.mode is not Mode.SWEEP:
            known = {each.name: getattr(result, each.name) for each in fields(ConfirmResult)} if result else {}
            if result is None or result.would_see_us is None:  # the forecast is still the best estimate
                known["steps_needed"] = max(self._forecast - one.covered, 1)
            known["dose_us"] = known.get("dose_us") or run.dose_us  # it is 0 before the first delay
            run = replace(run, **known)
        elif result is not None:
            run = replace(run, worth=result.worth, cost_us=one.account.spent_us - self._spent_before_us)
        run = replace(
            run,
            state=state,
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            ended_because=why,
            first_step=one.leases[0].order.first_step if run.first_step is None and one.leases else run.first_step,
            last_step=one.until,
            step_time_us=one.plan.step_us,
            budget=one.plan.budget,
            allowed_us=one.account.allowed_us,
            spent_us=one.account.spent_us,
        )
        self._run, self._written_at = run, time.monotonic()
        try:
            make_folder(self._places.confirm)
            write_whole(self._places.confirm / self._file, msgspec.json.encode(run))
        except OSError as error:
            self._say(f"what kair confirm found cannot be written: {error.strerror}")

    def _state(self) -> dict[str, str]:
        one, run = self._now or self._last, self._run
        if one is None:
            return {"state": "none"}
        found = {
            "state": "over" if self._now is None else "running",
            "file": self._file,
            "ranks": ",".join(map(str, one.plan.accused)),
            "place": one.plan.place.value,
            "dose_us": f"{one.plan.doses_us[-1]:.0f}",
            "covered": str(one.covered),
            "steps": str(one.plan.most_steps),
            "phase": one.plan.mode.value,
            "spent_us": f"{one.account.spent_us:.0f}",
            "allowed_us": f"{one.account.allowed_us:.0f}",
            "why": self._why,
        }
        if run is not None and run.steps_needed is not None:
            found["needed"] = str(run.steps_needed)
        return found


def _place(text: str) -> Place:
    try:
        place = Place(text)
    except ValueError:
        raise RefusedError(f"there is no place {text[:40]!r}: {', '.join(sorted(TAKEN))}") from None
    if place not in TAKEN:
        raise RefusedError(f"ranks cannot be delayed {place.value.replace('_', ' ')} yet: {', '.join(sorted(TAKEN))}")
    return place


def _dose(text: str, step_us: float, excess_us: float) -> float:
    """Return the requested dose, else half of the excess; both within safe limits. Raises InputError."""
    if not text:
        return dose_us(step_us, excess_us)
    most = min(LARGEST_SHARE * step_us, LARGEST_US)
    dose = _float(text)
    if not 0 < dose <= most:
        raise RefusedError(f"a delay may be {most / 1e3:.3g} ms here, {LARGEST_SHARE:.0%} of the step, and not more")
    return dose


def _budget(text: str) -> float:
    try:
        share = share_in(text) if text else BUDGET_SHARE
    except ValueError:
        share = 0.0
    if not 0 < share <= LARGEST_SHARE:
        raise RefusedError(f"the budget must be a share up to {LARGEST_SHARE:.0%}")
    return share


def _number(text: str, what: str, default: int, least: int, most: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise RefusedError(f"{what} must be a number from {least} to {most}")
    return int(text)


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
