"""gloo names no process group and no peer: what all ranks' recordings together show of them, and what they do not."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support import kineto_builder as kineto

from kair_engine.arrays import NONE
from kair_engine.recording.opening import open_trace
from kair_engine.timeline.collectives import match
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import RECV, SEND

ALL = (0, 1, 2, 3)
HOSTS = ((0, 1), (2, 3))
ACROSS = ((0, 2), (1, 3))
WORKER = 500
"""The first of gloo's threads; each group has its own."""

Calls = Callable[[int, int], Iterable[kineto.Event]]
"""The events of a rank in a step, in µs from the step's begin."""


def groups_of(rank: int, *families: tuple[str, tuple[tuple[int, ...], ...]]) -> list[dict[str, Any]]:
    """What `pg_config` lists on `rank`: its group of each family, numbered through all of them."""
    numbered = [(desc, ranks) for desc, groups in families for ranks in groups]
    return [
        {"pg_name": str(number), "pg_desc": desc, "pg_size": len(ranks), "ranks": list(ranks)}
        for number, (desc, ranks) in enumerate(numbered)
        if rank in ranks
    ]


MESH = (("default_pg", (ALL,)), ("mesh_hosts", HOSTS), ("mesh_across", ACROSS))


def job(
    folder: Path,
    calls: Calls,
    *,
    steps: int = 12,
    families: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = MESH,
    ahead_us: dict[int, float] | None = None,
    silent: int | None = None,
) -> Trace:
    """A recorded job of four ranks; those that are `ahead_us` are on another host, and its clock is ahead.

    The file of the rank that is `silent` says nothing of the job.
    """
    ahead_us = ahead_us or {}
    for rank in ALL:
        ahead = ahead_us.get(rank, 0.0)
        events = []
        for number in range(steps):
            begin = 10_000 + 100_000 * number + ahead
            events.append(kineto.step(number, begin, 99_000))
            events.append(kineto.op("aten::mm", begin + 10, 100))
            events += [{**event, "ts": event["ts"] + begin} for event in calls(rank, number)]
        content = kineto.trace(events, rank=rank, world=4)
        content["distributedInfo"]["pg_config"] = groups_of(rank, *families)
        if rank == silent:
            del content["distributedInfo"]
        kineto.write(folder / f"node{int(rank in ahead_us)}_{100 + rank}.{rank}.pt.trace.json.gz", content)
    return open_trace(folder, cache=folder.parent / "cache")


def all_reduce(
    arrivals: dict[int, float], groups: Iterable[tuple[int, ...]], rank: int, *, thread: int, elements: int = 64
) -> list[kineto.Event]:
    """The rank's part in an all-reduce that ends 300 µs after the last of its group has come."""
    (group,) = (group for group in groups if rank in group)
    end = max(arrivals[member] for member in group) + 300 + 10 * rank
    shape = {"Input Dims": [[elements]], "Input type": ["float"]}
    call = kineto.op("c10d::allreduce_", arrivals[rank] - 50, 20)
    return [
        call,
        kineto.annotation("gloo:all_reduce", arrivals[rank], end - arrivals[rank], tid=WORKER + thread, **shape),
    ]


def arrivals(step: int, call: int) -> dict[int, float]:
    """When each rank comes to a call of a step: at times of its own."""
    random_times = random.Random(100 * step + call)
    return {rank: 5_000 + 20_000 * call + random_times.uniform(0, 8_000) for rank in ALL}


def groups_in(trace: Trace) -> list[set[tuple[int, ...]]]:
    """For every step, which ranks were in one collective."""
    found = []
    for step in trace.steps:
        collectives = match(load_step(trace, step))
        found.append({tuple(sorted(collectives.members(at).tolist())) for at in range(len(collectives))})
    return found


def codes(trace: Trace) -> set[str]:
    return {warning.code for warning in trace.job.warnings}


@pytest.mark.slow
@pytest.mark.parametrize("silent", [None, 2])
@pytest.mark.parametrize("groups", [HOSTS, ACROSS, (ALL,)])
def test_the_ranks_that_leave_together_are_a_collective(
    tmp_path: Path, groups: tuple[tuple[int, ...], ...], silent: int | None
) -> None:
    """Where a rank's file lists no groups, its peers' lists have it."""
    trace = job(
        tmp_path / "job", lambda rank, step: all_reduce(arrivals(step, 0), groups, rank, thread=0), silent=silent
    )
    assert groups_in(trace) == [set(groups)] * 12
    assert codes(trace) == (set() if silent is None else {"rank_from_order"})


@pytest.mark.slow
def test_a_hierarchical_all_reduce_runs_on_each_host_and_then_across(tmp_path: Path) -> None:
    def calls(rank: int, step: int) -> list[kineto.Event]:
        first = all_reduce(arrivals(step, 0), HOSTS, rank, thread=rank % 2)
        return first + all_reduce(arrivals(step, 1), ACROSS, rank, thread=3 - rank % 2)

    trace = job(tmp_path / "job", calls)
    assert groups_in(trace) == [{*HOSTS, *ACROSS}] * 12
    ops = load_step(trace, 0)
    named = {ops.group_text[int(code)] for code in ops.group[ops.group != NONE]}
    assert named == {"1 [0, 1]", "2 [2, 3]", "3 [0, 2]", "4 [1, 3]"}


@pytest.mark.slow
@pytest.mark.parametrize("groups", [HOSTS, ACROSS, (ALL,)])
def test_a_host_whose_clock_is_ahead_changes_nothing(tmp_path: Path, groups: tuple[tuple[int, ...], ...]) -> None:
    ahead = {2: 7_000.0, 3: 7_000.0}
    trace = job(
        tmp_path / "job", lambda rank, step: all_reduce(arrivals(step, 0), groups, rank, thread=0), ahead_us=ahead
    )
    assert trace.job.derived is not None
    named = {lanes[f"thread {WORKER}"] for lanes in trace.job.derived.of_lane.values()}
    assert {tuple(map(int, name.partition("[")[2][:-1].split(", "))) for name in named} == set(groups)


def test_what_fits_several_groups_stays_unknown_with_a_warning(tmp_path: Path) -> None:
    same = dict.fromkeys(ALL, 5_000.0)
    trace = job(tmp_path / "job", lambda rank, _: all_reduce(same, HOSTS, rank, thread=0))
    assert codes(trace) == {"unknown_process_group"}
    assert (load_step(trace, 0).group == NONE).all()


def test_two_steps_do_not_show_a_group(tmp_path: Path) -> None:
    trace = job(tmp_path / "job", lambda rank, step: all_reduce(arrivals(step, 0), HOSTS, rank, thread=0), steps=2)
    assert codes(trace) == {"unknown_process_group"}


def test_what_ranks_bring_different_sizes_to_is_no_all_reduce_of_all(tmp_path: Path) -> None:
    """As stages of a pipeline do, whose gradients differ: two steps in which all leave at once are enough."""
    same = dict.fromkeys(ALL, 5_000.0)
    trace = job(
        tmp_path / "job",
        lambda rank, _: all_reduce(same, HOSTS, rank, thread=0, elements=64 if rank in HOSTS[0] else 128),
        steps=2,
    )
    assert groups_in(trace) == [set(HOSTS)] * 2
    assert codes(trace) == set()


@pytest.mark.parametrize(("steps", "unknown"), [(4, set()), (3, {"unknown_process_group"})])
def test_ranks_that_never_meet_are_of_two_groups(tmp_path: Path, steps: int, unknown: set[str]) -> None:
    """The second two come 30 ms after the first two have left: four steps show it, eight show who leaves together."""

    def calls(rank: int, step: int) -> list[kineto.Event]:
        later = {one: at + (30_000 if one in HOSTS[1] else 0) for one, at in arrivals(step, 0).items()}
        return all_reduce(later, HOSTS, rank, thread=0)

    trace = job(tmp_path / "job", calls, steps=steps)
    assert codes(trace) == unknown
    if not unknown:
        assert groups_in(trace) == [set(HOSTS)] * steps


def test_collectives_of_two_groups_on_one_thread_are_of_none_that_is_known(tmp_path: Path) -> None:
    def calls(rank: int, step: int) -> list[kineto.Event]:
        first = all_reduce(arrivals(step, 0), HOSTS, rank, thread=0)
        return first + all_reduce(arrivals(step, 1), ACROSS, rank, thread=0)

    assert codes(job(tmp_path / "job", calls)) == {"unknown_process_group"}


def test_the_only_group_needs_no_evidence(tmp_path: Path) -> None:
    same = dict.fromkeys(ALL, 5_000.0)
    alone = ("mesh_tp", tuple((rank,) for rank in ALL))
    families = (("default_pg", (ALL,)), alone)
    trace = job(tmp_path / "job", lambda rank, _: all_reduce(same, (ALL,), rank, thread=0), steps=2, families=families)
    assert groups_in(trace) == [{ALL}] * 2
    assert codes(trace) == set()


def transfer(name: str, call: str, place: int, ts: float) -> list[kineto.Event]:
    """A send or receive of whom the call names by its place in the group."""
    shape = {"Input Dims": [[1, 64]], "Input type": ["float"]}
    issued = kineto.op(f"c10d::{call}", ts, 20, **{"Concrete Inputs": ["", "", str(place), "0"]})
    return [issued, kineto.annotation(f"gloo:{name}", ts + 20, 500, **shape)]


def pipeline(rank: int, _: int) -> list[kineto.Event]:
    """Ranks 0 and 1 send forward to 2 and 3, in the groups ACROSS; these send back."""
    if rank < 2:
        return transfer("send", "send", 1, 1_000) + transfer("recv", "recv_", 1, 3_000)
    return transfer("recv", "recv_", 0, 1_100) + transfer("send", "send", 0, 2_900)


@pytest.mark.slow
def test_sends_and_receives_find_their_other_ends(tmp_path: Path) -> None:
    trace = job(tmp_path / "job", pipeline)
    ops = load_step(trace, 0)
    ends = {(int(ops.rank[row]), int(ops.peer[row])) for row in range(len(ops)) if ops.kind[row] in (SEND, RECV)}
    assert ends == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert groups_in(trace) == [set(ACROSS)] * 12
    assert codes(trace) == set()


def test_a_send_without_its_receive_in_any_group_has_no_peer(tmp_path: Path) -> None:
    trace = job(tmp_path / "job", lambda rank, step: pipeline(rank, step) if rank != 3 else [])
    assert codes(trace) == {"unknown_peers"}
    ops = load_step(trace, 0)
    assert (ops.peer == NONE).all()


def test_a_peer_is_not_known_where_no_groups_are_listed(tmp_path: Path) -> None:
    trace = job(tmp_path / "job", pipeline, families=())
    ops = load_step(trace, 0)
    assert (ops.peer == NONE).all()
