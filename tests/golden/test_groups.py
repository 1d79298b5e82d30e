"""The process groups of the sample recordings, which name none: what is derived is what the jobs used."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.answers import recorded
from support.places import SAMPLES

from kair_engine.recording.opening import open_trace
from kair_engine.timeline.collectives import match
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage

HOSTS = {(0, 1, 2, 3), (4, 5, 6, 7)}
ACROSS = {(0, 4), (1, 5), (2, 6), (3, 7)}
GROUPS = {
    "two_hosts_healthy": HOSTS | ACROSS,
    "two_hosts_slow_input": HOSTS | ACROSS,
    "slow_host": HOSTS | ACROSS,
    "pipeline_slow_operator": {(0, 1, 2), (3, 4, 5), (0, 3), (1, 4), (2, 5)},
}
OF_ONE_GROUP = ("healthy", "intermittent_stall")


def groups_of(trace: Trace) -> set[tuple[int, ...]]:
    """The members of all collectives and transfers, as ranks."""
    assert not {warning.code for warning in trace.job.warnings} & {"unknown_process_group", "unknown_peers"}
    found = set()
    for step in trace.steps:
        collectives = match(load_step(trace, step))
        assert collectives.rejected == 0
        ranks = collectives.ops.ranks
        found |= {tuple(sorted(ranks[collectives.members(at)].tolist())) for at in range(len(collectives))}
    return found


def edited(sample: str, folder: Path, edit: Callable[[dict[str, Any], int], str]) -> Path:
    """A copy of a sample, each rank's trace changed by `edit`, which gives the name of its host."""
    folder.mkdir()
    for path in (SAMPLES / sample).glob("*.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        host = edit(trace, trace["distributedInfo"]["rank"])
        (folder / f"{host}_{path.name.partition('_')[2]}").write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return folder


def on_a_clock_ahead(trace: dict[str, Any], rank: int) -> str:
    """Puts the upper half of the ranks on a host whose clock is 7 ms ahead and gains 50 µs a second."""
    if rank < trace["distributedInfo"]["world_size"] // 2:
        return "node0"
    begin = min(event["ts"] for event in trace["traceEvents"] if "ts" in event)
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] = round(event["ts"] + 7_000 + (event["ts"] - begin) * 50e-6, 3)
    return "node1"


def with_idle_dimensions(trace: dict[str, Any], rank: int) -> str:
    """Adds the groups of a 2 × 2 mesh in which nothing ran."""
    listed = trace["distributedInfo"]["pg_config"]
    for number, ranks in (
        (1 + rank // 2, [rank // 2 * 2, rank // 2 * 2 + 1]),
        (3 + rank % 2, [rank % 2, rank % 2 + 2]),
    ):
        dimension = "mesh_rows" if number < 3 else "mesh_columns"
        listed.append({**listed[0], "pg_name": str(number), "pg_desc": dimension, "pg_size": 2, "ranks": ranks})
    return "node0"


@pytest.mark.slow
@pytest.mark.parametrize("sample", GROUPS)
def test_every_collective_is_matched_in_its_group(sample: str) -> None:
    assert groups_of(recorded(SAMPLES / sample)) == GROUPS[sample]


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["slow_host", "pipeline_slow_operator"])
def test_also_where_a_hosts_clock_is_ahead_and_drifts(sample: str, tmp_path: Path) -> None:
    folder = edited(sample, tmp_path / sample, on_a_clock_ahead)
    assert groups_of(open_trace(folder, cache=tmp_path / "cache")) == GROUPS[sample]


@pytest.mark.slow
@pytest.mark.parametrize("sample", OF_ONE_GROUP)
def test_groups_in_which_nothing_ran_get_nothing(sample: str, tmp_path: Path) -> None:
    folder = edited(sample, tmp_path / sample, with_idle_dimensions)
    assert groups_of(open_trace(folder, cache=tmp_path / "cache")) == {(0, 1, 2, 3)}


@pytest.mark.slow
def test_whoever_receives_from_a_rank_without_a_trace_is_not_accused_of_waiting_for_it(tmp_path: Path) -> None:
    for path in (SAMPLES / "pipeline_slow_operator").glob("*.gz"):
        if json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"] != 2:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    trace = open_trace(tmp_path, cache=tmp_path / "cache")
    assert groups_of(trace) == {(0, 1), (3, 4, 5), (0, 3), (1, 4)}
    assert [finding.ranks for finding in triage(trace).findings] == [(1,)]
