"""Runs the agent of a host: it drains rings, has windows sampled, and keeps its heartbeat alive.

Its settings come from the environment, which the training job has too.
"""

import gzip
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import msgpack

from kair_capture.agent.dumps import Asked, Dumper
from kair_capture.agent.heartbeat import Link, Packet
from kair_capture.agent.identity import RankIdentities
from kair_capture.agent.ring_reader import Trainer, TrainerRings, trainers_in
from kair_capture.agent.run_folders import communication_in, remove_dead_folders, world_size_in
from kair_capture.agent.spool import Spool, deliver_file
from kair_capture.agent.step_rows import ROW, Journal, ScopeSums
from kair_capture.agent.telemetry.sampler import Telemetry
from kair_capture.agent.windows import Conversion, HostOfWindow, KeyBox
from kair_capture.clocks import CLOCK_FILE, ClockFit, OnwardClock
from kair_capture.delays import DELAYS_FILE, from_json
from kair_capture.files import locked, make_secure_dir, own_folder_in, write_atomically
from kair_capture.job.failing import tell, warn
from kair_capture.job.framework import COMMUNICATION_UNTIL
from kair_capture.job.windows import ControlWords, Window
from kair_capture.places import JobPlaces, address_of, store_root
from kair_capture.ring import is_running
from kair_capture.settings import SettingsError, default_run_dir, settings_of, switch
from kair_capture.unheard import mark_of, note_agent
from kair_capture.wire import (
    MOST_RANKS,
    MOST_ROWS,
    Beat,
    BeatReply,
    Delays,
    Host,
    KeyFileError,
    Number,
    Rows,
    read_key,
)
from kair_engine.store.remote import remote_of

SPOOL_BYTES: Final = 1 << 30
_FACTORS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class AgentSettings:
    """The settings of an agent."""

    job: str
    run_dir: Path
    places: JobPlaces
    host: str
    """KAIR_HOST, else the system's name for this host."""
    key_file: Path
    """KAIR_KEY_FILE, else the one in the job's folder of the store."""
    coordinator: tuple[str, int] | None
    """KAIR_COORDINATOR, host:port; None if it is read from the store."""
    spool: Path
    """Where fragments wait while the store is away: KAIR_SPOOL_DIR, by default on a disk of this host."""
    spool_bytes: int
    """KAIR_SPOOL_LIMIT: most bytes that wait there; 1 GiB."""
    idle_s: float
    """KAIR_AGENT_IDLE: the agent ends after this long without a living rank."""
    command: tuple[int, int] | None
    """KAIR_AGENT_COMMAND: the process that `kair capture run` became; while it runs, ranks may start."""
    is_quiet: bool = False
    """KAIR_QUIET=1: do not report how the job ended."""
    telemetry: bool = True
    """KAIR_TELEMETRY=off: read nothing of this host except what ranks record."""


def agent_settings(environment: Mapping[str, str] = os.environ) -> AgentSettings:
    """Return the settings in an environment. Raises SettingsError."""
    shared = settings_of(environment)
    places = JobPlaces(store_root(dict(environment)), shared.job)
    spool = environment.get("KAIR_SPOOL_DIR") or own_folder_in(Path("/var/tmp"))
    named = environment.get("KAIR_COORDINATOR", "").strip()
    try:
        coordinator = address_of(named) if named else None
    except ValueError as error:
        raise SettingsError(f"KAIR_COORDINATOR: {error}") from error
    host = environment.get("KAIR_HOST") or socket.gethostname()
    return AgentSettings(
        job=shared.job,
        run_dir=shared.run_dir,
        places=places,
        host=re.sub(r"[^A-Za-z0-9._-]", "_", host)[:80] or "host",
        key_file=Path(environment.get("KAIR_KEY_FILE") or places.key),
        coordinator=coordinator,
        spool=Path(spool) / f"{shared.job}.{mark_of(places.store)}",
        spool_bytes=_size(environment, "KAIR_SPOOL_LIMIT", SPOOL_BYTES),
        idle_s=float(_size(environment, "KAIR_AGENT_IDLE", 30)),
        is_quiet=switch(environment, "KAIR_QUIET", default=False),
        telemetry=switch(environment, "KAIR_TELEMETRY", default=True),
        command=_process(environment.get("KAIR_AGENT_COMMAND", "")),
    )


def _process(text: str) -> tuple[int, int] | None:
    number, _, began = text.partition(":")
    return (int(number), int(began)) if number.isdecimal() and began.isdecimal() else None


def _size(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip().upper()
    if not text:
        return default
    match = re.fullmatch(r"(\d{1,12})([KMG]?)B?", text, re.ASCII)
    if match is None:
        raise SettingsError(f"{name} must be a number such as 30 or 500M, got {text[:40]!r}")
    return int(match[1]) * _FACTORS[match[2]]


_TURN_S: Final = 0.1
_NICE: Final = 10
"""A tenth of a core's time next to one busy process; the agent's steady work takes less."""
_LOOK_S: Final = 0.5
_FIRST_RANK_S: Final = 600.0
"""A job's first rank may start late. If ranks were there before, a previous agent was killed."""
_LAST_ROWS_S: Final = 30.0
"""After the job, a coordinator that was there before may be restarting."""
_MOST_BATCHES: Final = 8
"""Batches in flight: 200 rows, within what the coordinator remembers per rank to detect duplicates."""
_REBIRTH_S: Final = 1.0
_ASKED_KEPT: Final = 8
"""Windows whose requested ranks are remembered, because conversion may lag."""
_ALONE_S: Final = 60.0
"""Warn once if ranks live and no coordinator has answered for this long."""


class Agent:
    """The agent of one job on one host. `run` returns when the job is over here."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raise BusyError if another agent runs, OSError if the folders cannot be used."""
        self.settings: Final = settings
        make_secure_dir(settings.run_dir)
        self._lock = locked(settings.run_dir / "agent.lock")
        note_agent(settings.run_dir, settings.places, settings.key_file, settings.coordinator)
        self.journal: Final = Journal(settings.run_dir / "rows.journal")
        delivered, remote = settings.places.delivered, remote_of(settings.places.store)
        self.spool: Final = Spool(settings.spool, settings.spool_bytes, delivered, settings.host, remote)
        self._key = KeyBox()
        windows = settings.run_dir / "windows"
        self.scopes: Final = ScopeSums(settings.run_dir)
        self.conversion: Final = Conversion(
            windows, settings.run_dir / "work", self.spool, self._key, self, self.scopes
        )
        self._trainers: dict[Trainer, TrainerRings] = {}
        self._remote = remote
        self._clock = OnwardClock(settings.run_dir / CLOCK_FILE)
        self.dumper: Final = Dumper(settings.run_dir, self._put, self._clock.ahead_ns)
        self.identities: Final = RankIdentities(
            settings.run_dir, settings.host, self._put, ahead_ns=self._clock.ahead_ns
        )
        samples = settings.spool / "samples"
        self.telemetry: Final = (
            Telemetry(samples, settings.host, self._put, self._remove, now_ns=self._clock.now_ns)
            if settings.telemetry
            else None
        )
        self._heartbeat: subprocess.Popen[bytes] | None = None
        # Priorities belong to threads and are inherited: this thread keeps the initial one.
        self._midwife = ThreadPoolExecutor(1, "midwife")
        self._link: Link | None = None
        self._born = float("-inf")
        self._fit: ClockFit | None = None
        self._hang = 0
        """Number of the last hang for which the ranks were asked."""
        self._obeyed = (0, 0)
        """Generation and first step of the last window ordered."""
        self._asked: dict[int, tuple[int, ...]] = {}
        """First step of a window → the ranks that were asked for it."""
        self._besides: dict[int, int] = {}
        """First step of a window → its extra data, as ProfileOptions."""
        self._on_their_way: dict[int, int] = {}
        """Batch → number of rows; in the journal's order."""
        self._kept: set[int] = set()
        self._batch = 0
        self._told: frozenset[Trainer] | None = None
        self._described: set[Trainer] = set()
        """Ranks whose communication was reported."""
        self._pace = (0, 0)
        """Sampling's share of the job's time, in millionths, and the interval at which ranks sample unasked."""
        self._control_word = 0
        """The settings of ranks that changed since their start; new ranks do not have them yet."""
        self._controlled: dict[Trainer, int] = {}
        self._lost_drops = 0
        self._was_reached = False
        self._ranks_since: float | None = None
        self._has_warned = False

    def run(self) -> None:
        """Work until no rank has lived for the settings' idle time."""
        self._be_born()
        _low_priority()
        if self.settings.run_dir == default_run_dir(self.settings.job):
            # Folders next to a custom one are not Kair's.
            remove_dead_folders(self.settings.run_dir)
        self.spool.start()
        self.conversion.start()
        if self.telemetry is not None:
            self.telemetry.start()
        while not self._serve():
            pass
        self._close()

    def about(self, first: int) -> HostOfWindow:
        """Return what conversion needs to know of this host, and the ranks asked for the window from `first` on."""
        asked = frozenset(self._asked.get(first, ()))
        world, ahead = world_size_in(self.settings.run_dir), self._clock.ahead_ns()
        return HostOfWindow(self.settings.host, world, self._fit, self._drops(), asked, ahead)

    def expected(self, first: int) -> frozenset[int]:
        """Return the living ranks that were asked for the window from `first` on."""
        return frozenset(self._asked.get(first, ())) & {trainer.rank for trainer in self._trainers}

    def keep(self, file: Path, first: int) -> None:
        """Copy a trace with extra data into `profiles/` of the job's store, because fragments have no room for it."""
        if not self._besides.get(first):
            return
        packed = self.settings.run_dir / "work" / f"{file.name}.gz"
        try:
            with file.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target)
            self._put(packed, f"profiles/steps-{first}/{packed.name}")
        finally:
            packed.unlink(missing_ok=True)

    def _serve(self) -> bool:
        """Work until the job is over here and all is delivered; return False if ranks came meanwhile."""
        lived, looked = time.monotonic(), float("-inf")
        command = self.settings.command
        if command is None and not any(self.settings.run_dir.glob("rank-*.json")):
            lived += max(_FIRST_RANK_S - self.settings.idle_s, 0)
        while time.monotonic() - lived < self.settings.idle_s:
            began = time.monotonic()
            if began - looked >= _LOOK_S:
                looked = began
                self._look()
            is_running_yet = command is not None and is_running(*command)
            if self._turn() or is_running_yet:
                lived = began
            elif command is not None and not self._trainers:
                break  # neither its command nor a rank lives
            time.sleep(max(_TURN_S - (time.monotonic() - began), 0.01))
        return self._deliver_last()

    def _deliver_last(self) -> bool:
        """Allow more time for delivery after the job; return False if ranks came meanwhile."""
        self.conversion.hurry()
        named = self.settings.coordinator is not None or self.settings.places.address.exists()
        until = time.monotonic() + (_LAST_ROWS_S if self._was_reached or named else 5)
        while time.monotonic() < until:
            self._look()
            if self._turn():
                return False
            untold = len(self.journal) > 0 and (self._was_reached or named)
            if self.conversion.is_idle and not untold and not self.spool.waiting and self.identities.is_idle:
                return True
            time.sleep(_TURN_S)
        return True

    def _close(self) -> None:
        if not self._was_reached and not self.settings.is_quiet:
            self._sum_up()
        self.conversion.stop(5)
        self._tell_counters()
        self.spool.stop(5)
        self.identities.stop(5)
        if self.telemetry is not None:
            self.telemetry.close()
        self.journal.close()
        if self._link is not None:
            self._link.close()
        if self._heartbeat is not None:
            self._heartbeat.wait()
        os.close(self._lock)

    def _sum_up(self) -> None:
        """Report the job's end from undelivered rows, on the first rank's host, if there was no coordinator."""
        rows = np.frombuffer(b"".join(self.journal.first(len(self.journal))), ROW)
        if 0 in rows["rank"]:
            ranks, steps = len(np.unique(rows["rank"])), int(rows["step"].max()) + 1
            ms, job = float(np.median(rows["step_us"])) / 1000, self.settings.job
            tell(
                f"job {job} is over: {steps} steps of {ranks} rank{'s' if ranks > 1 else ''} on this host, {ms:.3g} ms "
                f"each (median); no coordinator compared them: start kair coordinator --job {job} before the job"
            )

    # Work done once in a while.

    def _look(self) -> None:
        """Check for ranks that came or went, for the key, and for the heartbeat."""
        for trainer, rings in trainers_in(os.listdir(self.settings.run_dir)).items():  # noqa: PTH208  (names alone)
            if (known := self._trainers.get(trainer)) is None:
                known = TrainerRings(self.settings.run_dir, trainer, self._clock.ahead_ns())
                self._trainers[trainer] = known
            self.dumper.watch(trainer)
            for ring in rings:
                known.add(ring)
            if self.dumper.is_ending(trainer):
                self.dumper.ends(trainer, *known.place())
        with suppress(OSError):  # disk full: the next agent will not know that the clock was set back
            self._clock.keep()
        self.identities.look(self._trainers)
        if self.telemetry is not None:
            self.telemetry.look({trainer.rank: trainer.pid for trainer in self._trainers})
        self._read_key()
        if self._link is None:
            self._be_born()
        # After a restart the same ranks may have another world size.
        if (here := frozenset(self._trainers)) != self._told and self._tell_host(here):
            self._told = here
        self._tell_counters()
        self._tell_pace()
        self._tell_control()
        self._warn_if_alone()

    def _read_key(self) -> None:
        if self._key.key is None:
            try:
                self._key.key = read_key(self.settings.key_file, self.settings.job)
            except KeyFileError as error:
                # A missing key is made when the coordinator starts.
                if self.settings.key_file.exists():
                    self._warn(str(error))

    def _warn_if_alone(self) -> None:
        if self._was_reached or self._has_warned or not self._trainers:
            return
        self._ranks_since = self._ranks_since or time.monotonic()
        if time.monotonic() - self._ranks_since > _ALONE_S:
            where, address = self.settings.coordinator, self.settings.places.address
            if where is None and not address.exists():
                self._warn(f"job {self.settings.job} has no coordinator (kair coordinator --job {self.settings.job})")
            elif self._key.key is None:
                self._warn(f"there is no key {self.settings.key_file}")
            else:
                there = "where the store says" if where is None else f"at {where[0]}:{where[1]}"
                self._warn(f"no coordinator of job {self.settings.job} answers {there}")

    def _warn(self, what: str) -> None:
        """Warn once: training continues, and each host prints the line only once."""
        if not self._has_warned:
            self._has_warned = True
            warn(f"{what}: until that changes, the recording stays on host {self.settings.host}")

    def _tell_host(self, trainers: frozenset[Trainer]) -> bool:
        ranks = tuple(sorted({trainer.rank for trainer in trainers}))[:MOST_RANKS]
        host = Host(self.settings.host, world_size_in(self.settings.run_dir) or 0, ranks)
        return self._send(Packet.HOST, host.packed())

    def _tell_counters(self) -> None:
        beat = Beat(
            ranks=len(self._trainers),
            drops=self._drops(),
            delivered=self.spool.delivered,
            spooled=self.conversion.waiting + self.spool.waiting,
            discarded=self.spool.discarded + self.conversion.discarded + self.journal.discarded + self.scopes.discarded,
            generation=self._obeyed[0],
            unsent_rows=len(self.journal),
            sampled_every=self._sampled_every,
        )
        self._send(Packet.BEAT, beat.packed())

    @property
    def _sampled_every(self) -> int:
        """Return the largest interval, in steps, at which a rank here samples unasked."""
        return max((rings.sampled_every for rings in self._trainers.values()), default=0)

    def _drops(self) -> int:
        return self._lost_drops + sum(rings.drops for rings in self._trainers.values())

    # Work done in every turn.

    def _turn(self) -> bool:
        """Do one turn; return whether a rank lives."""
        alive = False
        for trainer, rings in list(self._trainers.items()):
            # Check before reading the rings, so that a dead process's last records are in them.
            is_alive = rings.is_alive
            alive |= is_alive
            place = None if is_alive else rings.place()
            written = self._drain(rings, to_the_end=not is_alive)
            if written and place is not None:
                self.dumper.ended(trainer, *place)
                self._bury(trainer, rings)
        self._send_rows()
        self._tell_standings()
        self._hear()
        return alive

    def _drain(self, rings: TrainerRings, *, to_the_end: bool) -> bool:
        """Move a rank's records to the journal; return whether all were written."""
        drained = rings.peek(to_the_end=to_the_end)
        if drained is None:
            return True
        rows = drained.new_rows(self.journal.last_step.get(rings.trainer.rank))
        try:
            if rows is not None:
                self.journal.append(rows)
                # After the rows, so that a kill in between counts no scope twice.
                self.scopes.add(drained.scopes_of(rows))
                self._describe(rings.trainer, int(rows["step"].max()))
        except OSError:
            return False  # disk full: records stay in the ring, which counts those without room
        rings.take(drained)
        return True

    def _describe(self, trainer: Trainer, step: int) -> None:
        """Report how a rank communicates once it knows; before its rows, which are judged by that."""
        if step <= COMMUNICATION_UNTIL or trainer in self._described:
            return
        found = communication_in(self.settings.run_dir, trainer)
        if found is None or self._send(Packet.COMMUNICATION, found.packed()):
            self._described.add(trainer)

    def _bury(self, trainer: Trainer, rings: TrainerRings) -> None:
        self._lost_drops += rings.drops
        rings.close(remove=True)
        del self._trainers[trainer]
        self._controlled.pop(trainer, None)

    def _tell_standings(self) -> None:
        """Report where ranks stand and how they ended, after their rows."""
        waiting = self.dumper.reports
        while waiting and self._send(Packet.STANDING, waiting[0].packed()):
            waiting.popleft()

    def _ask_ranks(self, hang: int) -> None:
        """Ask all other ranks where they are, because the job hangs or a rank has ended."""
        if hang and self._trainers:
            self.dumper.ask(hang, [Asked(trainer, *rings.place()) for trainer, rings in self._trainers.items()])

    def _put(self, file: Path, name: str) -> None:
        """Copy a file into the store, below the job's folder. Raises OSError."""
        folder = self.settings.places.folder
        if self._remote is None:
            deliver_file(file, folder / name)
        else:
            self._remote.put(file, f"{folder.name}/{name}")

    def _remove(self, name: str) -> None:
        """Remove a file from the store. Raises OSError."""
        if self._remote is None:
            (self.settings.places.folder / name).unlink(missing_ok=True)
        else:
            self._remote.remove(f"{self.settings.places.job}/{name}")

    def _send_rows(self) -> None:
        behind = sum(self._on_their_way.values())
        while len(self._on_their_way) < _MOST_BATCHES:
            rows = self.journal.first(MOST_ROWS, behind)
            if not rows or not self._send(Packet.ROWS, Rows(self._batch + 1, b"".join(rows)).packed()):
                return
            self._batch += 1
            self._on_their_way[self._batch] = len(rows)
            behind += len(rows)

    def _hear(self) -> None:
        if self._link is None:
            return
        try:
            packets = self._link.received()
        except ConnectionError:
            self._mourn()
            return
        for kind, content in packets:
            if kind == Packet.KEPT:
                self._acknowledge(Number.read(content).number)
            elif kind == Packet.FIT:
                self._fit = msgpack.decode(content, type=ClockFit)
            elif kind == Packet.REACHED:
                self._was_reached |= content == b"\x01"
                if content == b"\x00":
                    self._pace = (0, 0)  # without a coordinator, ranks pace themselves by this host's cost
            elif kind == Packet.KEY:
                self._key.key = content
            elif kind == Packet.DELAYS:
                self._tell_delays(Delays.read(content))
            elif kind == Packet.REPLY:
                self._hear_reply(BeatReply.read(content))

    def _hear_reply(self, reply: BeatReply) -> None:
        """Follow the coordinator's orders for this host's ranks."""
        self._pace = (reply.overhead_ppm, reply.sampled_every)
        self._control_word = reply.control
        self._tell_control()
        if reply.hang != self._hang:
            self._hang = reply.hang
            self._ask_ranks(reply.hang)
        self._obey(reply)

    def _acknowledge(self, batch: int) -> None:
        """Drop acknowledged rows from the journal, in its order: later batches wait for earlier ones."""
        self._kept.add(batch)
        while self._on_their_way and (first := next(iter(self._on_their_way))) in self._kept:
            self.journal.acknowledge(self._on_their_way.pop(first))
            self._kept.discard(first)

    def _obey(self, order: BeatReply) -> None:
        # A new coordinator, or one without its memory, may restart the count.
        if (order.generation, order.first_step) == self._obeyed:
            return
        self._obeyed = (order.generation, order.first_step)
        if not (order.steps and order.ranks):
            return
        here = {trainer.rank for trainer in self._trainers} & set(order.ranks)
        if here and self.telemetry is not None:
            self.telemetry.hurry()
        self._asked[order.first_step] = tuple(here)
        self._besides[order.first_step] = order.options
        while len(self._asked) > _ASKED_KEPT:
            oldest = next(iter(self._asked))
            del self._asked[oldest], self._besides[oldest]
        for rank in here:
            with suppress(OSError), closing(self._control(rank)) as words:
                words.ask(Window(order.first_step, order.steps, order.options))

    def _tell_pace(self) -> None:
        """Send the pace to ranks that sample unasked, so that all share one budget and the same steps."""
        overhead, every = self._pace
        for trainer, rings in self._trainers.items():
            if rings.sampled_every:
                with suppress(OSError), closing(self._control(trainer.rank)) as words:
                    words.tell_pace(overhead, max(every, self._sampled_every))

    def _tell_control(self) -> None:
        for trainer in self._trainers:
            if self._controlled.get(trainer, 0) != self._control_word:
                with suppress(OSError), closing(self._control(trainer.rank)) as words:
                    words.tell_control(self._control_word)
                    self._controlled[trainer] = self._control_word

    def _tell_delays(self, told: Delays) -> None:
        """Pass on an order to delay ranks, or its end: first the file, then its number to each rank."""
        try:
            if told.order and from_json(told.order).generation != told.number:
                return
            write_atomically(self.settings.run_dir / DELAYS_FILE, told.order)
        except (ValueError, OSError):
            return  # invalid, or disk full: ranks follow the last order to its end, which is near
        for trainer in self._trainers:
            with suppress(OSError), closing(self._control(trainer.rank)) as words:
                words.tell_delays(told.number)

    def _control(self, rank: int) -> ControlWords:
        return ControlWords(self.settings.run_dir / f"rank-{rank}.control")

    # The heartbeat.

    def _be_born(self) -> None:
        """Start the heartbeat, at this process's initial priority."""
        if time.monotonic() - self._born < _REBIRTH_S:
            return
        self._born = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        named = self.settings.coordinator
        with theirs:
            arguments = (
                str(theirs.fileno()),
                self.settings.job,
                str(self.settings.key_file),
                "-" if named is None else f"[{named[0]}]:{named[1]}",
                str(self.settings.places.address),
                str(self.settings.run_dir / CLOCK_FILE),
            )
            command = [sys.executable, "-P", "-m", "kair_capture.agent.heartbeat", *arguments]
            handles = (theirs.fileno(),)
            started = self._midwife.submit(
                lambda: subprocess.Popen(command, pass_fds=handles, stdin=subprocess.DEVNULL)
            )
            self._heartbeat = started.result()
        self._link = Link(ours)
        self._told = None

    def _mourn(self) -> None:
        """Clean up after a heartbeat that died; the next one is sent everything again."""
        if self._link is not None:
            self._link.close()
        if self._heartbeat is not None:
            self._heartbeat.poll()
        self._link = None
        self._described.clear()
        self._on_their_way.clear()
        self._kept.clear()

    def _send(self, kind: Packet, content: bytes) -> bool:
        if self._link is None:
            return False
        try:
            return self._link.send(kind, content)
        except ConnectionError:
            self._mourn()
            return False


def _low_priority() -> None:
    """Give training precedence on CPU and disk; without permission, keep the priority.

    Not the lowest priority: next to busy ranks that waits for seconds, which would delay the sampling of a slow rank.
    """
    with suppress(OSError):
        os.nice(_NICE)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(OSError):
        _idle_disk()


def _idle_disk() -> None:
    """Set the I/O class `idle`; Python has no call for it."""
    import ctypes
    import platform

    numbers = {"x86_64": 251, "aarch64": 30}
    if (number := numbers.get(platform.machine())) is not None:
        who_process, idle = 1, 3 << 13
        ctypes.CDLL(None, use_errno=True).syscall(number, who_process, 0, idle)
