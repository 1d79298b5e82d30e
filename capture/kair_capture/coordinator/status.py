"""How the job is doing, as one document: made of everything that the coordinator knows.

An endpoint for Prometheus: the status as text, on request.

What a coordinator must know when it starts again: a small file in the job's folder.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from kair_capture.coordinator.detection import FEWEST_RANKS
from kair_capture.coordinator.endpoint import Hosts, HostState
from kair_capture.coordinator.sampling import Sampler
from kair_capture.coordinator.step_table import STEPS_SHOWN, StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.wire import Communication
from kair_engine.results.watch import Alert, JobState, Sampling, WatchedHost, WatchedRank, WatchedWindow, WatchResult
from kair_engine.trace.files import read_kept, write_whole


def lines_of(status: WatchResult) -> Iterator[str]:
    """The metrics in Prometheus' text format."""
    job = _label(status.job)
    yield from _metric("kair_step", "The last step that nine in ten ranks reached.", [(f'job="{job}"', status.step)])
    if status.step_time_us is not None:
        step_s = status.step_time_us / 1e6
        yield from _metric("kair_step_seconds", "Median of the last steps.", [(f'job="{job}"', step_s)])
    of_ranks = [(f'job="{job}",rank="{one.rank}",host="{_label(one.host or "")}"', one) for one in status.ranks]
    yield from _metric(
        "kair_self_seconds",
        "A rank's step without what it waited for others, median of the last steps.",
        [(label, one.self_time_us / 1e6) for label, one in of_ranks if one.self_time_us is not None],
    )
    yield from _metric("kair_slow", "1 for a rank that is slow.", [(label, int(one.slow)) for label, one in of_ranks])
    of_hosts = [(f'job="{job}",host="{_label(one.host)}"', one) for one in status.hosts]
    silent = [(label, int(one.silent)) for label, one in of_hosts]
    yield from _metric("kair_host_silent", "1 for a host whose agent is not heard.", silent)
    yield from _metric(
        "kair_clock_bound_seconds",
        "How far a host's clock may be off.",
        [(label, one.clock_bound_us / 1e6) for label, one in of_hosts if one.clock_bound_us is not None],
    )
    dropped = [(label, one.drops) for label, one in of_hosts]
    yield from _metric("kair_dropped_records", "Records that found no room, since the agent started.", dropped)
    overhead = [(f'job="{job}"', status.sampling.overhead)]
    yield from _metric("kair_sampling_overhead", "The share of the job's time that sampling took.", overhead)


class MetricsServer:
    """Answers `GET /metrics` and nothing else, in threads of its own."""

    def __init__(self, address: tuple[str, int], status: Callable[[], WatchResult | None]) -> None:
        """Raises OSError where the address cannot be had."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                """Answers."""
                found = status()
                if self.path != "/metrics" or found is None:
                    self.send_error(404)
                    return
                body = "".join(f"{line}\n" for line in lines_of(found)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server's name)
                """Says nothing."""

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        """The one it has, also where any was asked for."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


def _metric(name: str, text: str, values: Sequence[tuple[str, float]]) -> Iterator[str]:
    if values:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} gauge"
        yield from (f"{name}{{{label}}} {value:.9g}" for label, value in values)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass
class Remembered:
    """Written whole whenever it changes."""

    generation: int = 0
    held_us: float = 0.0
    spent_us: float = 0.0
    elapsed_us: float = 0.0
    budget_step: int = 0
    unasked_until: int = -1
    """The last step whose windows that nobody asked for are charged."""
    charged_us: float = 0.0
    step_cost_us: float | None = None
    sampled: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    """rank → when it was last sampled (Unix s), its excess then, and how many steps."""
    windows: list[WatchedWindow] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    communication: list[Communication] = field(default_factory=list)
    """How ranks communicate, as their agents told it."""
    fragments: int = 0
    refused: int = 0
    duplicates: int = 0


def remembered(path: Path) -> Remembered:
    """What the file says; nothing where there is none, or it is damaged."""
    try:
        return msgspec.json.decode(read_kept(path), type=Remembered)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return Remembered()


def remember(path: Path, what: Remembered) -> None:
    """Raises OSError when there is no room."""
    write_whole(path, msgspec.json.encode(what))


def bounded(windows: list[WatchedWindow], most: int = 20) -> list[WatchedWindow]:
    """The last ones."""
    return list(deque(windows, maxlen=most))


_PAIR: Final = 2
_GONE_S: Final = 60.0
"""A host that is not heard for so long takes no part any more."""


def status_of(
    job: str,
    table: StepTable,
    hosts: Hosts,
    watching: Watching,
    *,
    sampler: Sampler,
    memory: Remembered,
    refused: Mapping[str, int],
    now: float,
) -> WatchResult:
    """The document; `now` is monotonic, s."""
    ranks = _ranks(table, hosts, watching)
    return WatchResult(
        job=job,
        updated_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        state=_state(table, hosts, watching, now),
        step=table.last_common_step,
        step_time_us=watching.step_us,
        usual_step_time_us=watching.usual_us,
        world_size=max(hosts.world_size, len(ranks)),
        ranks=ranks,
        hosts=tuple(_host(state, now) for state in sorted(hosts, key=lambda one: one.name)),
        alerts=tuple(watching.alerts),
        sampling=Sampling(
            max_overhead=sampler.budget.share,
            overhead=sampler.budget.overhead,
            fragments=memory.fragments,
            refused=memory.refused,
            duplicates=memory.duplicates,
            windows=tuple(memory.windows),
            owed_us=max(-sampler.budget.held_us, 0.0),
        ),
        refused_datagrams=dict(sorted(refused.items())),
    )


def _state(table: StepTable, hosts: Hosts, watching: Watching, now: float) -> JobState:
    """A coordinator that was started again waits for agents, though it knows steps."""
    if table.last_common_step < 0 or not len(hosts):
        return "waiting"
    if watching.is_stalled:
        return "stalled"
    if all(_is_through(state) or now - state.heard_s > _GONE_S for state in hosts):
        return "over"
    return "training" if any(state.had for state in hosts) else "waiting"


def _is_through(state: HostState) -> bool:
    """Whether nothing more is to come from a host: its ranks have ended, and what they left is told and delivered.

    Ranks that nobody has heard of are still to come, whatever is known of an earlier attempt: a job that starts once
    more imports its framework for longer than a coordinator may wait to leave.
    """
    beat, had_ranks = state.beat, bool(state.had) or state.is_silent
    return had_ranks and not (beat.ranks or beat.unsent_rows or beat.spooled)


def _ranks(table: StepTable, hosts: Hosts, watching: Watching) -> tuple[WatchedRank, ...]:
    host_of = hosts.by_rank()
    recent = table.recent(STEPS_SHOWN, table.last_common_step)
    position = {rank: at for at, rank in enumerate(recent.ranks.tolist())}
    step_us = np.nanmedian(recent.step_us, axis=1).tolist() if position else []
    self_us = np.nanmedian(recent.self_us, axis=1).tolist() if position else []
    told = watching.standing
    test = {} if told is None or len(told.rank) < _PAIR else dict(zip(
        told.rank.astype(int).tolist(),
        zip(told.excess.tolist(), told.z.tolist(), told.peers.tolist(), strict=True),
        strict=True,
    ))  # fmt: skip
    found = []
    for rank in sorted({*np.flatnonzero(table.latest >= 0).tolist(), *host_of}):
        at = position.get(rank)
        excess, z, peers = test.get(rank, (None, 0.0, 0))
        found.append(
            WatchedRank(
                rank=rank,
                host=host_of.get(rank),
                step=int(table.latest[rank]) if rank < len(table.latest) else -1,
                step_time_us=None if at is None else step_us[at],
                self_time_us=None if at is None else self_us[at],
                # Without peers, and with too little of a past.
                self_time_excess=None if peers + 1 < FEWEST_RANKS and not excess else excess,
                z=z,
                role=watching.roles.name(rank),
                peers=peers,
                slow=rank in watching.slow,
            )
        )
    return tuple(found)


def _host(state: HostState, now: float) -> WatchedHost:
    beat = state.beat
    return WatchedHost(
        host=state.name,
        ranks=beat.ranks,
        silent=state.is_silent,
        heard_s_ago=max(now - state.heard_s, 0.0),
        clock_offset_us=None if beat.bound_ns is None else beat.offset_ns / 1000,
        clock_bound_us=state.clock_bound_us,
        drops=beat.drops,
        delivered=beat.delivered,
        spooled=beat.spooled,
        discarded=beat.discarded,
        unsent_rows=beat.unsent_rows,
        sampled_every=beat.sampled_every,
    )
