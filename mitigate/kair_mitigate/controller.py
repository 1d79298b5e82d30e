"""Watches a job through capture's step rows and proposes what a policy decides, or carries it out.

It is a separate process next to the coordinator: if it dies, the job continues with its last plan. Policies see units
(ranks that are resized together) and their micro-batches. Computing time is capture's self time of a rank or, on a
device, the device's own time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kair_capture.coordinator.step_log import StepReader, once_each
from kair_capture.places import JobPlaces
from kair_capture.unheard import AFTER_S, why_no_step
from kair_engine.recording.job_file import JOB_FILE
from kair_engine.results.mitigate import MitigationProposal
from kair_engine.stats import last_reported
from kair_mitigate.job_state import JobState, read_state
from kair_mitigate.known_units import MEMORY, found_units, given_units, keep_units, kept_units
from kair_mitigate.plans import Plan
from kair_mitigate.policy.policies import Action, Policy, View
from kair_mitigate.policy.rates import Rates
from kair_mitigate.policy.units import Units
from kair_mitigate.records import Records

SMALLEST = 2
"""Fewest samples per rank and step: batches of 0 and 1 are compiled separately."""
MOST_MICRO_BATCHES = 8
LARGER = 1.25
"""Without a given bound, a rank gets at most this many times the largest size so far."""
MOST_ROWS = 1 << 18
"""Most step rows that are read; older ones are skipped."""
NEWEST = 1000
"""Steps from which the time per sample is fitted: each costs 0.4 ms."""
EVERY_S = 2.0
_OTHER_UNITS = "other ranks are resized together than were known then"
_NEAR_US = 60e6
"""A step of capture is matched with the loader's if it began within this time of rank 0's report."""


@dataclass
class Controller:
    """What is known of one job between looks."""

    places: JobPlaces
    records: Records
    make_policy: Callable[[], Policy]
    """Called for each set of units, because a policy accumulates what its units have cost."""
    auto: bool = False
    per_hour: int = 20
    most: int | None = None
    restart_s: float | None = None
    """Duration of a restart; None if not given, and then no restart is proposed."""
    units: str | None = None
    unit_size: int | None = None
    """Given by a user who knows which ranks are resized together."""
    micro_batch: int | None = None
    say: Callable[[str], None] = lambda _: None
    in_words: Callable[[MitigationProposal], str] = str
    """Describes what a proposal would do and gain."""
    _units: Units | None = None
    _told_at: tuple[int, ...] = ()
    """When the files that define units last changed (ns)."""
    _rates: Rates | None = None
    _seen: int = -1
    """The last step that was processed."""
    _new_steps: "NewSteps | None" = None
    _ordered_at: list[float] = field(default_factory=list)
    _proposed: tuple[str, tuple[int, ...], tuple[int, ...] | None] | None = None
    _has_refused: bool = False
    """Whether the reason why ranks cannot claim was reported."""

    def __post_init__(self) -> None:
        self._policy = self.make_policy()

    def run(self, *, once: bool = False) -> None:
        """Look every EVERY_S seconds, or `once`. Raises OSError, and ValueError for units that do not exist."""
        said, seen, since = None, self._seen, time.monotonic()
        while True:
            self.look()
            if once:
                return
            if self._seen != seen:
                said, seen, since = None, self._seen, time.monotonic()
            elif time.monotonic() - since > AFTER_S and (why := why_no_step(self.places)) not in (None, said):
                said = why
                self.say(why)
            time.sleep(EVERY_S)

    def look(self) -> Action:
        """Process the new steps, and decide after each.

        Raises OSError if they cannot be read, ValueError if the job does not have the given units.
        """
        known, decided = read_state(self.records.folder), Action()
        if known is None:
            return decided
        units = self._find_units(known.state.plan.sizes)
        if self._new_steps is None:
            self._new_steps = NewSteps(self.places.steps)
        if (new := self._new_steps.after(self._seen, known)) is None:
            return decided
        numbers, self_s, step_s, samples = new
        # At the first look, only the decision of the last step is current.
        is_first = self._rates is None
        if self._rates is None:
            self._rates = Rates(len(units.members))
        now_of = {plan.from_step: units.micro_batches(plan.sizes) for plan in known.in_force}
        view = self._view(known, units)
        for column, number in enumerate(numbers.tolist()):
            plan = known.plan_at(number)
            if number <= self._seen or plan is None:
                continue
            self._seen = number
            of_ranks = self_s[:, column]
            compute, now = units.compute_s(of_ranks), now_of[plan.from_step]
            done = units.micro_batches(samples[:, column]) if plan.claims else now
            rest = max(float(step_s[:, column].max() - compute.max()), 0.0)
            self._rates.add(number, compute, now, rest, done)
            action = self._policy.decide(replace(view, step=number, compute_s=compute, done=done))
            if action.kind == "claim" and not self._has_refused and (why := why_no_claims(known, units)) is not None:
                self._has_refused = True
                self.say(why)
            if action.kind == "kill_restart" and len(action.units):
                slowest = units.slowest(of_ranks, int(action.units[0]))
                action = replace(action, reason={**action.reason, "rank": slowest})
            # A policy requests a restart only once: later steps of the same look must not override it.
            if is_first or (action.kind != "none" and decided.kind != "kill_restart"):
                decided = action
        sizes_stay = units.why_fixed(known.state.plan.sizes) is not None
        is_possible = {"kill_restart": True, "adjust_bs": not sizes_stay, "backup_workers": known.is_uneven}
        is_possible["adjust_lr"] = known.has_rate and not sizes_stay
        is_possible["claim"] = why_no_claims(known, units) is None
        if is_possible.get(decided.kind, False):
            self._propose(decided, known, units)
        return decided

    def _find_units(self, sizes: Sequence[int]) -> Units:
        """Return the units a user gave, else the recorded ones; store them in the job's folder for `status`."""
        told_at = tuple(map(_changed_ns, (self.places.folder / JOB_FILE, self.places.capture / MEMORY)))
        known = self._units
        is_new = known is None or known.ranks != len(sizes)
        if known is not None and not is_new and (known.known in {"told", "recorded"} or told_at == self._told_at):
            return known
        self._told_at = told_at
        units = given_units(len(sizes), self.units, self.unit_size, self.micro_batch)
        units = units or found_units(self.places, len(sizes), self.micro_batch)
        if units != self._units:
            before = known or kept_units(self.records.folder, len(sizes))
            fixed = units.why_fixed(sizes)
            if before is None or before.ties != units.ties or fixed is not None:
                self.records.replace(fixed or _OTHER_UNITS)
                self._policy, self._proposed, self._rates, self._seen = self.make_policy(), None, None, -1
                self._new_steps = None
            self._units = units
            keep_units(self.records.folder, units)
            if said := units.sentence(sizes):
                self.say(said)
        return units

    def _view(self, known: JobState, units: Units) -> View:
        """Return the policies' current view of the job, without the measurements of its steps."""
        assert self._rates is not None
        state, of_one = known.state, units.micro_batch or 1
        plan = state.coming[-1] if state.coming else state.plan
        newest = units.micro_batches(plan.sizes)
        largest = max(max(plan.sizes) for plan in (*known.in_force, *state.coming))
        highest = np.full(len(newest), (self.most or int(largest * LARGER)) // of_one)
        fixed = units.why_fixed(state.plan.sizes) is not None
        return View(
            step=-1,
            steps_left=max(state.step, 1),  # as many as so far: a job's end is not known
            sizes=newest,
            pending=bool(state.coming) or self._is_unheard(known),
            lowest=newest if fixed else np.minimum(units.micro_batches(state.plan.sizes), -(-SMALLEST // of_one)),
            highest=newest if fixed else np.maximum(highest, newest),
            rates=self._rates,
            compute_s=np.zeros(len(newest)),
            done=newest,
            claims=plan.claims,
            can_claim=why_no_claims(known, units) is None,
            restart_s=self.restart_s,
            has_deadline=state.plan.deadline_us > 0,
            can_adjust_lr=known.has_rate,
            most_micro_batches=MOST_MICRO_BATCHES if known.is_uneven else 1,
        )

    def _is_unheard(self, known: JobState) -> bool:
        """Return whether the job has not received the last plan yet; only one is sent at a time."""
        return any(one.plan.version > known.state.newest_version for one in self.records.history(1))

    def _propose(self, action: Action, known: JobState, units: Units) -> None:
        stays = action.sizes is None or units.why_fixed(known.state.plan.sizes) is not None
        sizes = known.state.plan.sizes if stays or action.sizes is None else units.sizes(action.sizes)
        micro = None if action.micro_batches is None or not known.is_uneven else units.of_ranks(action.micro_batches)
        deadline_us = None if action.deadline is None else self._deadline_us(action.deadline, known, units)
        if (action.kind, sizes, micro) == self._proposed:
            return
        self._proposed = action.kind, sizes, micro
        price = {} if action.price is None else {name: float(value) for name, value in asdict(action.price).items()}
        reason = {**{name: float(value) for name, value in action.reason.items()}, **price}
        rule = action.learning_rate if action.kind == "adjust_lr" else None
        if rule is not None:
            reason["learning_rate"] = known.state.rate_factor(Plan(0, 0, sizes, learning_rate=rule))
        shares = {"batches": micro, "deadline_us": deadline_us, "learning_rate": rule}
        number = self.records.propose(action.kind, sizes, reason, **shares)  # type: ignore[arg-type]
        self.say(f"proposal {number}: {self.in_words(self.records.proposals(1)[0])}")
        if self.auto and self._may_order():
            self._ordered_at.append(time.monotonic())
            decided = self.records.decide(number, "approved", "auto")
            if decided is not None:
                plan = self.records.carry_out(decided, "auto")
                self.say(f"proposal {number} is carried out: plan {plan.version}")
        else:
            self.say(f"kair mitigate approve {self.places.job} {number} carries it out")

    def _deadline_us(self, medians: float, known: JobState, units: Units) -> int:
        """Return `medians` times the median unit's computing time per step at the present sizes, in µs."""
        assert self._rates is not None
        times = self._rates.fitted().times(units.micro_batches(known.state.plan.sizes))
        return round(1e6 * medians * float(np.median(times)))

    def _may_order(self) -> bool:
        now = time.monotonic()
        self._ordered_at = [at for at in self._ordered_at if now - at < 3600]
        return len(self._ordered_at) < self.per_hour


def why_no_claims(known: JobState, units: Units) -> str | None:
    """Return why ranks cannot claim their samples, in a line; None if they can."""
    if not known.is_uneven:
        return "claims: a rank's batches of a step are fixed; kair_mitigate.loader(…, uneven_accumulation=True)"
    if len(units.members) == 1 < units.ranks:
        return f"claims: all {units.ranks} ranks meet in every micro-batch, so none can take its own samples"
    if len(units.members) < units.ranks:
        return f"claims: ranks {'+'.join(map(str, units.largest))} meet in every micro-batch"
    return None if units.known != "in part" else f"claims: {units.why_fixed(known.state.plan.sizes)}"


def _changed_ns(path: Path) -> int:
    """Return when a file changed; 0 if it is missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def rates_of(steps: Path, known: JobState) -> tuple[list[float], list[float]] | None:
    """Return each rank's seconds per sample and per step regardless of samples; None without usable steps."""
    if (measured := stepped(steps, known)) is None:
        return None
    numbers, self_s, samples = measured[0][-NEWEST:], measured[1][:, -NEWEST:], measured[3][:, -NEWEST:]
    rates = Rates(len(known.state.plan.sizes))
    for column, number in enumerate(numbers.tolist()):
        if (plan := known.plan_at(number)) is not None:
            done = samples[:, column] if plan.claims else None
            rates.add(number, self_s[:, column], np.array(plan.sizes, dtype=np.int64), done=done)
    if not rates.counted:
        return None
    fit = rates.fitted()
    return fit.slope_s.tolist(), fit.fixed_s.tolist()


Steps = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int64]]
"""(numbers of the steps that all ranks reported, (ranks × steps) self times and step times in s, and samples)."""


class NewSteps:
    """Reads the loader's steps that all ranks reported, look by look; a device's last time holds until its next."""

    def __init__(self, steps: Path) -> None:
        """Prepare reading; nothing is read yet."""
        self._folder, self._reader = steps, StepReader(steps)
        self._device_us = np.zeros((0, 0))
        """The last time of each rank's device (1 × ranks); 0 for ranks without one."""

    def after(self, step: int, known: JobState) -> Steps | None:
        """Return the steps after `step`; None if there are none of the last minute. Raises OSError."""
        files = self._reader.read(MOST_ROWS) if self._folder.is_dir() else []
        of_first = once_each([rows[rows["rank"] == 0] for rows in files])
        if not len(of_first):
            return None
        away = np.abs(of_first["begin_us"].astype(np.float64) - known.said_at * 1e6)
        nearest = int(away.argmin())
        if away[nearest] > _NEAR_US:
            return None
        first = int(of_first["step"][nearest]) - known.state.step
        rows = once_each([rows[rows["step"] > max(step + first, -1)] for rows in files])
        numbers, self_s, step_s, samples = self._matrices(rows, len(known.state.plan.sizes))
        return numbers - first, self_s, step_s, samples

    def _matrices(self, rows: npt.NDArray[Any], ranks: int) -> Steps:
        """Return the steps, numbered as capture numbers them."""
        rows = rows[rows["rank"] < ranks]
        numbers, place, counts = np.unique(rows["step"], return_inverse=True, return_counts=True)
        whole = np.flatnonzero(counts == ranks)
        column = np.full(len(numbers), -1)
        column[whole] = np.arange(len(whole))
        kept = column[place] >= 0

        def matrix(name: str) -> npt.NDArray[np.float64]:
            of = np.zeros((ranks, len(whole)))
            of[rows["rank"][kept], column[place][kept]] = rows[name][kept]
            return of

        own = matrix("self_us")
        before = self._device_us if self._device_us.shape[1] == ranks else np.zeros((1, ranks))
        device = np.concatenate([before, matrix("device_us").T])
        if device.any():
            device = last_reported(device)
            self._device_us = device[-1:]
            if device.all():
                own = device[1:].T
        return numbers[whole].astype(np.int64), own / 1e6, matrix("step_us") / 1e6, matrix("samples").astype(np.int64)


def stepped(steps: Path, known: JobState) -> Steps | None:
    """Return the loader's steps that all ranks reported; None if there are none."""
    return NewSteps(steps).after(-(1 << 62), known)
