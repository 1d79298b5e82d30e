"""Runs the coordinator of a job: it receives from agents, watches, orders windows, and has commits made."""

import errno
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace as replace_fields

from kair_capture.agent.step_rows import ROW
from kair_capture.control import options_in, options_of
from kair_capture.coordinator.alert_text import in_words
from kair_capture.coordinator.attempts import Attempts
from kair_capture.coordinator.committing import Committer
from kair_capture.coordinator.confirming import Confirming
from kair_capture.coordinator.control import Control, SettingError
from kair_capture.coordinator.detection import STEPS
from kair_capture.coordinator.endpoint import Endpoint, Handlers, Hosts
from kair_capture.coordinator.hangs import Hangs
from kair_capture.coordinator.judging import Judging
from kair_capture.coordinator.pricing import Pricing
from kair_capture.coordinator.sampling import Sampler, Unasked, Window, cost_us
from kair_capture.coordinator.status import MetricsServer, Remembered, bounded, remember, remembered, status_of
from kair_capture.coordinator.step_log import ScopeLog, StepLog
from kair_capture.coordinator.step_table import Roles, StepTable
from kair_capture.coordinator.store_work import StoreWork, remote_job_of
from kair_capture.coordinator.summary import summary_of
from kair_capture.coordinator.watching import STALLED_S, Watching
from kair_capture.coordinator.webhook import Webhook
from kair_capture.files import BusyError, locked
from kair_capture.places import JobPlaces
from kair_capture.ring import StepFlag
from kair_capture.unheard import AFTER_S, why_unheard
from kair_capture.wire import (
    Beat,
    BeatReply,
    Capture,
    CaptureReply,
    Communication,
    Done,
    Host,
    Kind,
    Number,
    Rows,
    Standing,
    Values,
    make_key,
    read_key,
)
from kair_engine.errors import InputError
from kair_engine.results.watch import WatchedWindow, WatchResult
from kair_engine.trace.files import append_kept, make_folder, modes_below, remove_unwritten, write_whole


@dataclass(frozen=True)
class CoordinatorSettings:
    """The settings of `kair coordinator`."""

    places: JobPlaces
    listen: tuple[str, int]
    """Where agents reach it; port 0 for any."""
    may_move: bool = False
    """Whether it takes any free port if that one is taken."""
    advertise: str | None = None
    """Its name for agents on other hosts; by default this host's, or the address that it listens on."""
    key_file: Path | None = None
    """By default the one in the job's folder, which is created if missing."""
    max_overhead: float = 0.01
    """Share of the job's time that sampling may take."""
    metrics: tuple[str, int] | None = None
    """Address for Prometheus."""
    alert_webhook: str | None = None
    """URL that alerts are posted to."""
    leave_after_s: float | None = None
    """Seconds after the job's last rank at which it ends; at least ten minutes if no rank begins. None to stay."""
    stalled_after_s: float = STALLED_S
    """Seconds without the end of a step after which the job hangs, and its ranks are asked where they are."""
    allow_delays: bool = False
    """Whether `kair confirm` may delay ranks that do not state it themselves."""
    pricing: tuple[str, ...] = ()
    """Command that prices sampled windows, run after each commit; empty for none."""
    judging: tuple[str, ...] = ()
    """Command that prints triage's answer as JSON; empty for none."""


_TURN_S: Final = 0.1
_FIRST_RANK_S: Final = 600.0
"""A job's first rank may start late: its agents wait as long."""
_LEAST_INTERVAL_MS: Final = 200
_MS_A_HOST: Final = 1.0
"""Limits a coordinator to a thousand beats a second."""
_STATUS_S: Final = 1.0
_COMMITTED_S: Final = 3.0
"""Seconds after a job's end until the last delivery is in the store, which is checked every second."""
_STATUS_S_A_RANK: Final = 1 / 2000
_ASK_WHY_S: Final = 5.0
_MOST_STEPS: Final = 50
_OF_SAMPLER: Final = ("budget", "generation", "sampled", "charged_us", "step_cost_us")
"""The parts of it that are stored."""


class Coordinator:
    """The coordinator; `run` returns when it is stopped, or after the job if it was to leave then."""

    def __init__(self, settings: CoordinatorSettings, say: Callable[[str], None] = lambda _: None) -> None:
        """Raise BusyError, KeyFileError, OSError or KairError if the address or the store cannot be used.

        Raise ValueError for an invalid webhook.
        """
        self._settings, self._say = settings, say
        places = settings.places
        make_folder(places.folder, modes_below(places.store))
        make_folder(places.capture)
        self._lock = locked(places.capture / "lock")
        _remove_leftovers(places)
        remote = remote_job_of(places)
        if remote is not None:
            remote.restore()
        key_file = settings.key_file or places.key
        if settings.key_file is None and make_key(key_file):
            say(f"made the job's key {key_file}")
        key, self._key_text = read_key(key_file, places.job), key_file.read_bytes()
        self._memory = remembered(places.capture / "memory.json")
        self._table, self._hosts, self._attempts = StepTable(), Hosts(), Attempts()
        self._sampler = _sampler(self._memory, settings.max_overhead)
        self._watching = Watching(
            self._table,
            self._hosts,
            self._sampler,
            Roles(self._memory.communication),
            stalled_after_s=settings.stalled_after_s,
        )
        self._confirming = Confirming(
            places, self._table, self._hosts, self._watching, allowed=settings.allow_delays, say=say
        )
        self._apply(Control.remembered(self._memory.control))
        self._hangs = Hangs(places, self._table, self._hosts, self._memory.hang)
        self._unasked = Unasked(self._memory.unasked_until)
        self._watching.alerts.extend(self._memory.alerts)
        self._log = StepLog(places.steps)
        self._log_gone = False
        self._unwritten_since: str | None = None
        self._has_begun = False
        """Whether a rank was reported since the coordinator started."""
        self._heard_s = self._asked_why_s = time.monotonic()
        self._refused = 0
        """Datagrams with a wrong signature, at the last check why no rank reports."""
        self._unheard_because: str | None = None
        self._learn()
        with _listening(settings.listen, "--listen"):
            self.endpoint: Final = self._endpoint(key)
        self._store = StoreWork(Committer(places, key), self._log, ScopeLog(places, key), remote)
        self._pricing = Pricing(settings.pricing, places.windows)
        self._judging = Judging(settings.judging, self._memory.triage)
        self._delivered = self._sampled_every = 0
        self._settled = 0
        self._changed = False
        self._stopping = self._is_summed_up = self._is_through = False
        self.status: WatchResult | None = None
        url = settings.alert_webhook
        self._webhook = None if url is None else Webhook(url, places.job, say)
        self.metrics = None if settings.metrics is None else self._metrics_at(settings.metrics)
        self._advertise()

    def _endpoint(self, key: bytes) -> Endpoint:
        host, port = self._settings.listen
        try:
            return Endpoint((host, port), key, self._handlers())
        except OSError:
            if not self._settings.may_move:
                raise
            return Endpoint((host, 0), key, self._handlers())

    # Requests from the endpoint.

    def _handlers(self) -> Handlers:
        return {
            Kind.BEAT: (Beat, self.on_beat),
            Kind.ROWS: (Rows, self.on_rows),
            Kind.HOST: (Host, self.on_host),
            Kind.COMMUNICATION: (Communication, lambda _, told: self.on_communication(told)),
            Kind.STANDING: (Standing, lambda _, told: self.on_standing(told)),
            Kind.DELAYS: (Done, lambda _, __: self._confirming.order()),
            Kind.CAPTURE: (Capture, lambda _, asked: self.on_capture(asked)),
            Kind.CONTROL: (Values, lambda _, asked: self.on_control(asked)),
            Kind.CONFIRM: (Values, lambda _, asked: self.on_confirm(asked)),
        }

    def on_beat(self, sender: int, beat: Beat) -> BeatReply:
        """Handle an agent's beat; return when to beat again, and the last window."""
        state = self._hosts.hear(sender, beat, time.monotonic())
        interval_ms = max(_LEAST_INTERVAL_MS, round(_MS_A_HOST * len(self._hosts)))
        self._watching.interval_s = interval_ms / 1000
        reply = BeatReply(
            interval_ms=interval_ms,
            overhead_ppm=round(self._sampler.budget.overhead * 1e6),
            sampled_every=self._sampled_every,
            hang=self._hangs.number,
            control=self._control.of_ranks.packed(),
            delays=self._confirming.number,
        )
        if (window := self._sampler.window) is None or state is None:
            return reply
        here, what = tuple(rank for rank in window.ranks if rank in set(state.ranks)), window.options
        order = {"generation": window.generation, "first_step": window.first, "steps": window.steps}
        return replace_fields(reply, ranks=here, options=what, **order)

    def on_host(self, sender: int, host: Host) -> Done | None:
        """Register an agent."""
        if not self._hosts.introduce(host, sender, time.monotonic()):
            return None
        self._hangs.lives(host.ranks)
        ranks = len(host.ranks)
        self._say(f"agent on {host.name}: {ranks} rank{'' if ranks == 1 else 's'}")
        return Done()

    def on_communication(self, communication: Communication) -> Done:
        """Store how a rank communicates."""
        self._changed |= self._watching.roles.add(communication)
        return Done()

    def on_standing(self, standing: Standing) -> Done:
        """Store where a rank stands, or how it ended."""
        self._hangs.hear(standing)
        return Done()

    def on_rows(self, sender: int, rows: Rows) -> Number | None:
        """Store step times; the reply may announce a window, which the agent then requests at once."""
        found = np.frombuffer(rows.rows, ROW)
        new = self._table.unknown(found)
        self._attempts.label(new, self._hosts.clock_offset_us(sender))
        self._confirming.mark(new)
        try:
            if self._log_gone or not self._log.is_there:
                self._follow_folder()
                self._log.reopen()
                self._log_gone = False
            self._log.append(new)
        except OSError as error:
            self._log_gone = True
            self._note_unwritten(error)
            return None  # the agent keeps them and retries
        before = self._table.attempt
        self._table.add(new)
        if self._table.attempt != before:
            self._hosts.forget_departed()
        for rank in new["rank"][(new["flags"] & StepFlag.MISSED) > 0].tolist():
            self._note_missed(rank)
        if len(new):
            self._has_begun = True  # a short job's ranks may all end before a beat reports them
            ended_us = int(new["begin_us"][-1]) + int(new["step_us"][-1])
            # By the host's clock, which may be arbitrarily wrong.
            now_us = self.endpoint.clock.now_ns() / 1e3 + self._hosts.clock_offset_us(sender)
            self._watching.note_lag((now_us - ended_us) / 1e6)
        return Number(self._sampler.generation)

    def on_capture(self, capture: Capture) -> CaptureReply:
        """Order a window for a user."""
        if not self._control.is_on:
            return CaptureReply(0, 0, f"capture is off (kair capture set {self._settings.places.job} capture=on)")
        if self._hangs.is_open or self._watching.is_stalled:
            why = self._hangs.last.told if self._hangs.last is not None and not self._hangs.last.over else ""
            return CaptureReply(0, 0, f"no step ends any more{why and f': {why}'}")
        known = set(np.flatnonzero(self._table.latest >= 0).tolist())
        unknown = sorted(set(capture.ranks) - known)
        step_us = self._watching.step_us
        if not known or step_us is None:
            return CaptureReply(0, 0, "no rank has reported enough steps yet")
        if unknown:
            return CaptureReply(0, 0, f"rank {unknown[0]} is not among those that are heard")
        if why := self._why_busy():
            return CaptureReply(0, 0, why)
        steps = min(max(capture.steps, 1), _MOST_STEPS)
        ranks = capture.ranks or tuple(sorted(known))
        first, options = self._watching.first_step(), options_in(capture.options)
        ordered = self._sampler.order_by_hand(ranks, steps, first, step_us, options=options)
        self._note_window(ordered)
        return CaptureReply(ordered.first, ordered.steps)

    def on_control(self, asked: Values) -> Values:
        """Change settings for a user, or return the present ones."""
        changes = asked.values
        try:
            control = self._control.changed(changes)
        except SettingError as error:
            return Values(why_not=str(error))
        if changes:
            self._apply(control)
            self._memory.control = dict(control.values)
            self._say(f"set by hand: {', '.join(f'{key}={value}' for key, value in changes.items())}")
            self._changed = True
            with suppress(OSError):
                self._remember()
        started = self._settings
        return Values(control.in_force(max_overhead=started.max_overhead, stalled_after_s=started.stalled_after_s))

    def on_confirm(self, asked: Values) -> Values:
        """Start, stop or report `kair confirm` for a user."""
        why = "" if self._confirming.is_on else self._why_busy()
        if not self._control.is_on:
            why = f"capture is off (kair capture set {self._settings.places.job} capture=on)"
        elif self._hangs.is_open or self._watching.is_stalled:
            why = "no step ends any more"
        return self._confirming.ask(asked.values, why_not=why)

    def _why_busy(self) -> str:
        """Return which steps are sampled or delayed, and so exclude other requests; "" if none are."""
        window = self._sampler.window
        if self._confirming.is_on:
            return f"kair confirm runs (kair confirm {self._settings.places.job} --stop)"
        is_sampled = window is not None and self._table.last_common_step < window.last
        return f"steps {window.first} to {window.last} are being sampled" if window and is_sampled else ""

    def _apply(self, control: Control) -> None:
        self._control, watching = control, self._watching
        self._sampler.budget.share = control.value("max-overhead", self._settings.max_overhead)
        watching.stalled_after_s = control.value("stalled-after", self._settings.stalled_after_s)
        watching.least, watching.samples = control.least, control.samples

    # The loop.

    def run(self) -> None:
        """Run until `stop`."""
        self._store.start()
        written, over_since = float("-inf"), None
        while not self._stopping:
            select.select([self.endpoint.socket], [], [], _TURN_S)
            self.endpoint.turn()
            now = time.monotonic()
            self._watch(now)
            if now - written >= max(_STATUS_S, len(self._table.latest) * _STATUS_S_A_RANK):
                written = now
                self._write_status(now)
            over_since = (over_since or now) if self._is_idle and not self._pricing.is_open else None
            if over_since is None:
                self._is_summed_up = False
            self._is_through = over_since is not None and now - over_since > _COMMITTED_S
            if self._is_through and self._is_judged(now):
                self._sum_up()
            leave = self._settings.leave_after_s
            self._has_begun |= any(state.had for state in self._hosts)
            if leave is not None and not self._has_begun:
                leave = max(leave, _FIRST_RANK_S)
            if leave is not None and over_since is not None and now - over_since > leave and self._is_judged(now):
                break
        self._close()

    def _is_judged(self, now: float) -> bool:
        """Return whether triage has answered on all that the job left; a job without a step needs no answer."""
        return not self._is_over or self._judging.is_final(now, self._table.last_common_step)

    def _ask_triage(self, now: float) -> None:
        """Print triage's answer, if it is new."""
        is_over = self._is_through and self._is_over
        alerts = self._judging.turn(now, self._table.last_common_step, is_over=is_over)
        if alerts is None:
            return
        last, self._changed = self._judging.last, True
        if alerts:
            self._say(alerts)
        elif is_over:
            self._write_status(now)  # the summary includes it
        elif last is not None:
            self._say(f"triage of the steps up to {last.step}: {last.summary}")

    def _sum_up(self) -> None:
        """Print the summary once the job is over and all deliveries are committed."""
        status = self.status
        if not self._is_summed_up and status is not None and self._is_over:
            self._is_summed_up = True
            for line in summary_of(status):
                self._say(line)

    @property
    def _is_over(self) -> bool:
        """Return whether a job that had steps is over."""
        return self.status is not None and self.status.step >= 0 and self.status.state in ("over", "failed")

    @property
    def _is_idle(self) -> bool:
        """Return whether the job is over, or none has begun: no agent reports, and none had ranks."""
        is_over = self.status is not None and self.status.state in ("over", "failed")
        return is_over or not any(state.had or not state.is_silent for state in self._hosts)

    def stop(self) -> None:
        """End the loop; may be called by a signal's handler."""
        self._stopping = True

    def _watch(self, now: float) -> None:
        self._settle()
        self._charge_unasked()
        if self._log_gone or not self._control.is_on:
            self._watching.wait(now)
        window = self._watching.turn(now)
        self._watching.hear(now)
        if (hang := self._hangs.turn(now, is_stalled=self._watching.is_stalled)) is not None:
            self._watching.tell_hang(hang)
        why = "capture was set off" if not self._control.is_on else "a rank died" if self._hangs.is_open else ""
        self._confirming.turn(why_off=why)
        if (trouble := self._pricing.turn()) is not None:
            self._watching.tell_prices(self._pricing.windows)
            if trouble:
                self._say(trouble)
        if self._watching.news:
            self._judging.look(self._table.last_common_step)
            self._tell_news()
        self._ask_triage(now)
        if window is not None:
            self._note_window(window)
        self._sampled_every = self._hosts.sampled_every
        if (delivered := self._hosts.delivered) != self._delivered:
            self._delivered = delivered
            self._store.look()
        while self._store.done:
            self._note_commit()

    def _settle(self) -> None:
        """Charge a window's measured cost once its steps are reported; if they were forgotten, the estimate stays."""
        window = self._sampler.window
        if window is None or window.generation == self._settled:
            return
        if self._table.last_common_step <= window.last + 1:
            return
        self._settled = window.generation
        cost = cost_us(self._table, window.ranks, window.first, window.last)
        if cost is not None:
            self._sampler.settle(cost)
        self._memory.windows = [
            replace(one, state="over") if (one.number, one.state) == (window.generation, "ordered") else one
            for one in self._memory.windows
        ]
        self._changed = True

    def _charge_unasked(self) -> None:
        """Charge what ranks sampled by themselves, which took the job's time as well."""
        asked = ((one.first_step, one.last_step) for one in self._memory.windows)
        cost = self._unasked.cost_us(self._table, asked)
        if cost > 0:
            self._sampler.budget.spend(cost)
            self._changed = True

    def _note_window(self, window: Window) -> None:
        noted = WatchedWindow(window.generation, window.first, window.last, window.ranks, window.why, "ordered")
        noted = replace(noted, options=options_in(window.options).names)
        self._memory.windows = bounded([*self._memory.windows, noted])
        self._say(f"steps {window.first} to {window.last} are sampled on {len(window.ranks)} ranks ({window.why})")
        self._changed = True
        # Before any agent receives it: after a restart the next window must have another number.
        with suppress(OSError):
            self._remember()

    def _note_missed(self, rank: int) -> None:
        """Note that a rank did not sample as asked, so its last window lacks it."""
        windows = self._memory.windows
        at = next((at for at in reversed(range(len(windows))) if rank in windows[at].ranks), None)
        if at is not None and rank not in windows[at].missed:
            windows[at] = replace(windows[at], missed=tuple(sorted((*windows[at].missed, rank))))
            self._say(f"rank {rank} missed steps {windows[at].first_step} to {windows[at].last_step}")
            self._changed = True

    def _note_commit(self) -> None:
        committed = self._store.done.popleft()
        self._memory.fragments += len(committed.windows)
        self._memory.refused += committed.refused
        self._memory.duplicates += committed.duplicates
        for first, last, ranks in committed.windows:
            self._say(f"steps {first} to {last} of {len(ranks)} ranks are in the store")
            self._memory.windows = [
                replace(one, state="committed") if one.first_step <= first and last <= one.last_step else one
                for one in self._memory.windows
            ]
        self._changed = True
        self._pricing.look()
        self._judging.look(self._table.last_common_step)

    def _tell_news(self) -> None:
        """Append alerts to a file, a line each, for readers that follow it."""
        lines = b""
        while self._watching.news:
            alert = self._watching.news.popleft()
            lines += msgspec.json.encode(alert) + b"\n"
            self._say(in_words(alert))
            if self._webhook is not None:
                self._webhook.post(alert)
        with suppress(OSError):
            path = self._settings.places.alerts
            with os.fdopen(append_kept(path), "wb") as file:
                file.write(lines)
        self._changed = True

    def _why_unheard(self, now: float) -> str | None:
        """Return why no rank reports, as far as it is visible here; each reason is printed once."""
        if self._hosts.ranks(living=True):
            self._heard_s = now
            return None
        if now - self._heard_s < AFTER_S or now - self._asked_why_s < _ASK_WHY_S:
            return self._unheard_because
        self._asked_why_s, refused = now, self.endpoint.refused["signature"]
        address = (self._settings.listen[0], self.endpoint.port)
        why = why_unheard(
            self._settings.places, address, self._settings.key_file, refused=max(refused - self._refused, 0)
        )
        self._refused = refused
        if why is not None and (self._unheard_because or "").partition(":")[0] != why.partition(":")[0]:
            self._say(why)
        return why

    def _write_status(self, now: float) -> None:
        self._unheard_because = self._why_unheard(now)
        self._table.forget_left_behind(np.array(self._hosts.ranks(living=True), np.int64), STEPS)
        self.status = status_of(
            self._settings.places.job,
            self._table,
            self._hosts,
            self._watching,
            sampler=self._sampler,
            memory=self._memory,
            refused=self.endpoint.refused,
            now=now,
            unwritten_since=self._unwritten_since,
            hang=self._hangs.last,
            priced=self._pricing.windows,
            triage=self._judging.last,
            is_undecided=self._hangs.is_undecided,
            unheard_because=self._unheard_because,
        )
        # A missing store is written when it is back; the status is never needed to continue.
        try:
            self._follow_folder()
            write_whole(self._settings.places.status, msgspec.json.encode(self.status))
            if self._changed:
                self._remember()
                self._changed = False
        except OSError as error:
            self._note_unwritten(error)
        else:
            if not self._log_gone:
                self._note_unwritten(None)

    def _follow_folder(self) -> None:
        """Continue in the job's folder of the store if it was replaced, and report that.

        Raises OSError while the store is away: nothing is created in place of an unmounted file system.
        """
        places = self._settings.places
        lock = places.capture / "lock"
        if not places.store.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(places.store))
        with suppress(FileNotFoundError):
            if os.path.samestat(lock.stat(), os.fstat(self._lock)):
                return
        make_folder(places.folder, modes_below(places.store))
        make_folder(places.capture)
        try:
            before, self._lock = self._lock, locked(lock)
        except BusyError as error:
            raise OSError(errno.EBUSY, "another coordinator works in it", str(lock)) from error
        os.close(before)
        if self._settings.key_file is None and not places.key.exists():
            write_whole(places.key, self._key_text)
        self._advertise()
        self._log.reopen()
        self._memory.moved_at_step = self._table.last_common_step + 1
        self._changed = True
        self._say("the job's folder in the store was replaced: what was written before is not in it")

    def _note_unwritten(self, error: OSError | None) -> None:
        """Note that the store cannot be written, or with None that it can again. Each is reported once."""
        if error is None and self._unwritten_since is not None:
            self._unwritten_since = None
            self._say("the store can be written again")
        elif error is not None and self._unwritten_since is None:
            self._unwritten_since = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._say(f"the store cannot be written ({error.strerror}): agents keep what they have until it can be")

    def _remember(self) -> None:
        for name in _OF_SAMPLER:
            setattr(self._memory, name, getattr(self._sampler, name))
        self._memory.unasked_until = self._unasked.until
        self._memory.hang = self._hangs.last
        self._memory.triage = self._judging.last
        self._memory.communication = list(self._watching.roles.reports)
        self._memory.alerts = list(self._watching.alerts)
        remember(self._settings.places.capture / "memory.json", self._memory)

    def _learn(self) -> None:
        """Learn from the steps before a restart what is usual, and what is chance."""
        rows = self._log.recover()
        self._attempts.learn(rows)
        order = np.argsort(rows["begin_us"], kind="stable")
        # 80 steps at a time, as many as are tested at once.
        at_a_time = 80 * max(len(np.unique(rows["rank"])), 1)
        for part in np.array_split(rows[order], max(len(rows) // at_a_time, 1)):
            self._table.add(part)
            self._watching.turn(time.monotonic(), muted=True)

    def _metrics_at(self, address: tuple[str, int]) -> MetricsServer:
        with _listening(address, "--metrics"):
            return MetricsServer(address, lambda: self.status, self._webhook)

    def _advertise(self) -> None:
        host, _ = self._settings.listen
        if self._settings.advertise is not None:
            host = self._settings.advertise
        elif host in ("", "0.0.0.0", "::"):
            host = socket.gethostname()
        address = {"host": host, "port": self.endpoint.port, "pid": os.getpid()}
        write_whole(self._settings.places.address, json.dumps(address).encode())

    def _close(self) -> None:
        self._store.stop(30)
        self._pricing.close()
        self._judging.close()
        self._hangs.close()
        while self._store.done:
            self._note_commit()
        self._changed = True
        self._write_status(time.monotonic())
        self._sum_up()
        self._settings.places.address.unlink(missing_ok=True)
        if self._webhook is not None:
            self._webhook.close()
        if self.metrics is not None:
            self.metrics.close()
        self.endpoint.close()
        self._log.close()
        os.close(self._lock)


@contextmanager
def _listening(address: tuple[str, int], option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"{address[0]}:{address[1]}"
        raise InputError(
            f"cannot listen at {where}: {error.strerror or error}", f"{option} HOST:PORT; port 0 is any that is free"
        ) from error


def _remove_leftovers(places: JobPlaces) -> None:
    """Remove unfinished files of a killed coordinator."""
    remove_unwritten(places.capture)
    for folder in (places.steps, places.scopes):
        for path in folder.glob(".*.parquet"):
            with suppress(OSError):
                path.unlink()


def _sampler(memory: Remembered, share: float) -> Sampler:
    sampler = Sampler(**{name: getattr(memory, name) for name in _OF_SAMPLER})
    sampler.budget.share = share
    last = memory.windows[-1] if memory.windows else None
    if last is not None and last.state == "ordered":
        steps = last.last_step - last.first_step + 1
        options = options_of(last.options)
        sampler.window = Window(last.number, last.first_step, steps, last.ranks, last.why, options)
    return sampler
