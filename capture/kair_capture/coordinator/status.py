"""How the job is doing, as one document: made of everything that the coordinator knows."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import numpy as np

from kair_capture.coordinator.detection import FEWEST_RANKS
from kair_capture.coordinator.hosts import Hosts, HostState
from kair_capture.coordinator.sampling import Sampler
from kair_capture.coordinator.step_table import STEPS_SHOWN, StepTable
from kair_capture.coordinator.storage.memory import Remembered
from kair_capture.coordinator.watching import Watching
from kair_engine.results.runs.watch import JobState, Sampling, WatchedHost, WatchedRank, WatchResult

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
