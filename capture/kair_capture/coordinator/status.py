"""Describes the job's state, as one document and as text for Prometheus, and stores what a restart needs."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import numpy as np

from kair_capture.coordinator.detection import per_sample
from kair_capture.coordinator.endpoint import Hosts, HostState
from kair_capture.coordinator.sampling import Budget, Sampled, Sampler
from kair_capture.coordinator.step_table import STEPS_SHOWN, StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.coordinator.webhook import Webhook
from kair_capture.wire import Communication
from kair_engine.results.watch import (
    Alert,
    AlertKind,
    Hang,
    JobState,
    Sampling,
    WatchedHost,
    WatchedRank,
    WatchedVerdict,
    WatchedWindow,
    WatchResult,
)
from kair_engine.results.windows import PricedWindow
from kair_engine.trace.files import read_kept, write_whole

_OF_JOB: Final = {
    "kair_step": ("step", "The last step that nine in ten ranks reached."),
    "kair_step_seconds": ("step_time_us", "Median of the last steps."),
    "kair_usual_step_seconds": ("usual_step_time_us", "Median of the steps before."),
    "kair_world_size": ("world_size", "Ranks of the job."),
    "kair_sampling_overhead": ("sampling.overhead", "The share of the job's time that sampling took."),
    "kair_sampling_owed_seconds": ("sampling.owed_us", "Sampling time beyond the budget, not yet earned back."),
    "kair_committed_fragments_total": ("sampling.fragments", "Fragments that are in the store."),
    "kair_refused_fragments_total": ("sampling.refused", "Delivered files that no agent of the job made."),
}
"""Metric → its field in the status and its help text; µs are exported as seconds."""
_OF_RANKS: Final = {
    "kair_self_seconds": (
        "self_time_us", "A rank's step without its waits for others, median of the last steps.",
    ),
    "kair_sample_seconds": (
        "sample_time_us",
        "The rank's self time per sample, if the job reports its number of samples.",
    ),
    "kair_slow": ("slow", "1 for a rank that is slow."),
    "kair_self_excess_ratio": ("self_time_excess", "A rank's self time beyond its peers', as a share of theirs."),
}  # fmt: skip
_OF_HOSTS: Final = {
    "kair_host_silent": ("silent", "1 for a host whose agent is silent."),
    "kair_clock_bound_seconds": ("clock_bound_us", "How far a host's clock may be off."),
    "kair_host_heard_seconds": ("heard_s_ago", "Time since the last message of a host's agent."),
    "kair_host_ranks": ("ranks", "Living training processes on a host."),
    "kair_dropped_records": ("drops", "Records that found no room, since the agent started."),
    "kair_spooled_fragments": ("spooled", "Fragments that wait for the store."),
    "kair_unsent_rows": ("unsent_rows", "Step times that wait for the coordinator."),
    "kair_delivered_fragments_total": ("delivered", "Fragments that reached the store."),
    "kair_discarded_total": ("discarded", "Fragments, windows and step times that were given up."),
}
_OF_WINDOW: Final = {
    "kair_slowdown": ("slowdown", "S of the last sampled window that was priced."),
    "kair_m_w": ("m_w", "M_W of that window: the share of the slowdown that fixing the slowest workers removes."),
    "kair_simulation_error": ("simulation_error", "Error of that window's replay without fixes."),
    "kair_slowdown_is_high": ("is_high", "1 where S of that window raises an alert."),
}
_OF_WEBHOOK: Final = {
    "kair_webhook_sent_total": ("sent", "Alerts that the webhook took."),
    "kair_webhook_dropped_total": ("dropped", "Alerts that did not reach the webhook."),
}


def lines_of(status: WatchResult, webhook: Webhook | None = None) -> Iterator[str]:
    """Yield the metrics in Prometheus' text format."""
    job = {"job": status.job}
    ranks: list[tuple[Mapping[str, str], Any]]
    ranks = [({**job, "rank": str(one.rank), "host": one.host or ""}, one) for one in status.ranks]
    hosts = [({**job, "host": one.host}, one) for one in status.hosts]
    last = [(job, one) for one in status.priced_windows[-1:]]
    of_webhook = [] if webhook is None else [(job, webhook)]
    for metrics, labelled in (
        (_OF_JOB, [(job, status)]), (_OF_RANKS, ranks), (_OF_HOSTS, hosts), (_OF_WINDOW, last),
        (_OF_WEBHOOK, of_webhook),
    ):  # fmt: skip
        for name, (path, text) in metrics.items():
            factor, value_of = 1e-6 if path.endswith("_us") else 1, attrgetter(path)
            found = ((labels, value_of(one)) for labels, one in labelled)
            yield from _metric(name, text, [(labels, factor * value) for labels, value in found if value is not None])
    slow = () if status.triage is None else status.triage.slow
    cost = [({**job, "rank": str(rank)}, one.time_lost_us_per_step * 1e-6) for one in slow for rank in one.ranks]
    yield from _metric("kair_cost_seconds", "Time a step loses by the rank and those slow with it, by triage.", cost)
    since = [({**job, "rank": str(rank)}, one.since) for one in slow for rank in one.ranks if one.since is not None]
    yield from _metric("kair_slow_since_step", "The first slow step of the rank, where it began in the job.", since)
    by_rank = [({**job, "rank": str(rank)}, value) for _, one in last for rank, value in one.by_rank.items()]
    yield from _metric("kair_rank_slowdown", "S_w of each rank in the last sampled window that was priced.", by_rank)
    of_chance = [(labels, one.z) for labels, one in ranks if one.self_time_excess is not None]
    yield from _metric("kair_self_excess_z", "The excess as a z score; above 6 three times, it is an alert.", of_chance)
    # Prometheus sees from an old time that a coordinator no longer writes.
    written = [(job, datetime.fromisoformat(status.updated_at).timestamp())]
    yield from _metric("kair_status_timestamp_seconds", "When the coordinator last looked, Unix time.", written)
    number = status.sampling.windows[-1].number if status.sampling.windows else 0
    yield from _metric("kair_sampling_windows_total", "Windows of sampled steps that were ordered.", [(job, number)])
    states = [({**job, "state": one}, one == status.state) for one in get_args(JobState) if one != "unattended"]
    yield from _metric("kair_job_state", "1 for the present state of the job.", states)
    kinds = Counter(alert.kind for alert in status.open_alerts())
    alerts = [({**job, "kind": kind}, kinds[kind]) for kind in get_args(AlertKind)]
    yield from _metric("kair_open_alerts", "Open alerts; one of longer steps stays open.", alerts)
    refused = [({**job, "reason": reason}, count) for reason, count in status.refused_datagrams.items()]
    yield from _metric("kair_refused_datagrams_total", "Datagrams that were refused, by reason.", refused)


class MetricsServer:
    """Answers `GET /metrics` and nothing else, in separate threads."""

    def __init__(
        self, address: tuple[str, int], status: Callable[[], WatchResult | None], webhook: Webhook | None = None
    ) -> None:
        """Raise OSError if the address cannot be used."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                """Answer a request."""
                found = status()
                if self.path != "/metrics" or found is None:
                    self.send_error(404)
                    return
                body = "".join(f"{line}\n" for line in lines_of(found, webhook)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server's name)
                """Log nothing."""

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        """Return the actual port, also if any was requested."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


def _metric(name: str, text: str, values: Sequence[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    if values:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
    for labels, value in values:
        within = ",".join(f'{label}="{_escaped(one)}"' for label, one in labels.items())
        yield f"{name}{{{within}}} {value:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass
class Remembered:
    """A coordinator's state, written atomically whenever it changes."""

    budget: Budget = field(default_factory=lambda: Budget(0.0))
    """This and the next ones: the sampler's, by the same names."""
    generation: int = 0
    sampled: dict[int, Sampled] = field(default_factory=dict)
    charged_us: float = 0.0
    step_cost_us: float | None = None
    unasked_until: int = -1
    """The last step whose unasked windows are charged."""
    windows: list[WatchedWindow] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    hang: Hang | None = None
    triage: WatchedVerdict | None = None
    control: dict[str, str] = field(default_factory=dict)
    """Settings changed while the job runs."""
    communication: list[Communication] = field(default_factory=list)
    """How ranks communicate, as their agents reported."""
    fragments: int = 0
    refused: int = 0
    duplicates: int = 0
    moved_at_step: int | None = None
    """The store has the job from this step on: its folder there was replaced."""


def remembered(path: Path) -> Remembered:
    """Return the stored state; an empty one if it is missing or damaged."""
    try:
        return msgspec.json.decode(read_kept(path), type=Remembered)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return Remembered()


def remember(path: Path, what: Remembered) -> None:
    """Store the state. Raises OSError if there is no room."""
    write_whole(path, msgspec.json.encode(what))


def bounded(windows: list[WatchedWindow], most: int = 20) -> list[WatchedWindow]:
    """Return the last windows."""
    return list(deque(windows, maxlen=most))


_PAIR: Final = 2
_GONE_S: Final = 60.0
"""A host that is silent for this long counts as gone."""


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
    unwritten_since: str | None = None,
    hang: Hang | None = None,
    priced: tuple[PricedWindow, ...] = (),
    triage: WatchedVerdict | None = None,
    is_undecided: bool = False,
    unheard_because: str | None = None,
) -> WatchResult:
    """Return the document; `now` is monotonic, in s.

    `is_undecided`: ranks died or hang, and the cause is not known yet: clients that follow the job wait for it.
    """
    ranks = _ranks(table, hosts, watching)
    state = _state(table, hosts, watching, now, has_failed=hang is not None and not hang.over)
    return WatchResult(
        job=job,
        updated_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        state="stalled" if is_undecided and state in ("over", "failed") else state,
        step=table.last_common_step,
        step_time_us=watching.step_us,
        usual_step_time_us=watching.usual_us,
        world_size=max(hosts.world_size, len(ranks)),
        attempt=table.attempt,
        unwritten_since=unwritten_since,
        moved_at_step=memory.moved_at_step,
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
        hang=hang,
        control=dict(memory.control),
        priced_windows=priced,
        triage=triage,
        unheard_because=unheard_because,
        parts_every=table.parts_every,
        silent_s=watching.silent_s(now) if state == "training" else 0.0,
    )


def _state(table: StepTable, hosts: Hosts, watching: Watching, now: float, *, has_failed: bool) -> JobState:
    """Return the state; a restarted coordinator waits for agents, although it knows steps.

    `has_failed`: the job hung or a rank died, and it has not continued since.
    """
    if table.last_common_step < 0 or not len(hosts):
        return "waiting"
    if all(_is_through(state) or now - state.heard_s > _GONE_S for state in hosts):
        return "failed" if has_failed else "over"
    if watching.is_stalled:
        return "stalled"
    return "training" if any(state.had for state in hosts) else "waiting"


def _is_through(state: HostState) -> bool:
    """Return whether a host is finished: its ranks have ended, and all they left is reported and delivered.

    Ranks not seen yet are still expected, whatever is known of an earlier attempt: a restarting job imports its
    framework for longer than a coordinator may wait before it leaves.
    """
    beat, had_ranks = state.beat, bool(state.had) or state.is_silent
    return had_ranks and not (beat.ranks or beat.unsent_rows or beat.spooled)


def _ranks(table: StepTable, hosts: Hosts, watching: Watching) -> tuple[WatchedRank, ...]:
    host_of = hosts.by_rank()
    recent = table.recent(STEPS_SHOWN, table.last_common_step)
    position = {rank: at for at, rank in enumerate(recent.ranks.tolist())}
    of = None if recent.samples is None else per_sample(recent)
    medians = {
        name: np.nanmedian(matrix, axis=1).tolist()
        for name, matrix in (
            ("step_time_us", recent.step_us),
            ("self_time_us", recent.self_us),
            ("samples", recent.samples),
            ("sample_time_us", None if of is None else of.self_us),
        )
        if matrix is not None
    }
    standing = watching.standing
    test = {} if standing is None or len(standing.rank) < _PAIR else dict(zip(
        standing.rank.tolist(),
        zip(standing.excess.tolist(), standing.z.tolist(), standing.peers.tolist(), strict=True),
        strict=True,
    ))  # fmt: skip
    found = []
    for rank in sorted({*np.flatnonzero(table.latest >= 0).tolist(), *hosts.ranks(living=True)}):
        at = position.get(rank)
        excess, z, peers = test.get(rank, (np.nan, 0.0, 0))
        excess_us = None if np.isnan(excess) else watching.excess_us.get(rank)
        found.append(
            WatchedRank(
                rank=rank,
                host=host_of.get(rank),
                step=int(table.latest[rank]) if rank < len(table.latest) else -1,
                **{name: None if at is None else values[at] for name, values in medians.items()},
                self_time_excess=None if np.isnan(excess) else excess,
                z=z,
                role=watching.roles.name(rank),
                peers=peers,
                slow=rank in watching.slow,
                evened_out=rank in watching.evened_out - watching.slow,
                excess_us=excess_us,
                excess_of_step=excess_us / watching.step_us if excess_us is not None and watching.step_us else None,
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
