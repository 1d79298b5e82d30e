"""Whichever way a fix of ranks is worked out, it changes the same durations."""

from collections.abc import Iterator

import numpy as np
import pytest
from support.answers import recorded
from support.places import SAMPLES

from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace
from kair_engine.whatif.operators.batches import Batch, step_batches

JOBS = ("job123", "pipeline_slow_operator", "two_hosts_slow_input")


def some_ranks(trace: Trace) -> Iterator[tuple[int, ...]]:
    """Single ranks, all but one, a host's, and all others."""
    ranks, hosts = trace.job.ranks, trace.job.hosts
    of_host = tuple(rank for rank in ranks if hosts[rank] == hosts[ranks[0]])
    for rank in (ranks[0], ranks[len(ranks) // 2], ranks[-1]):
        yield (rank,)
        yield tuple(one for one in ranks if one != rank)
    if len(of_host) < len(ranks):
        yield of_host
        yield tuple(one for one in ranks if one not in of_host)


def by_parts(batch: Batch, fix: Fix) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What every node takes: the parts as the fix leaves them, added up."""
    parts = batch.dependencies.parts
    return np.bincount(parts.node, weights=batch.all_values_ns((fix,)), minlength=batch.dependencies.graph.nodes)


def by_change(batch: Batch, fix: Fix) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The same: the recording, or the ideal, and what the fix changes of it."""
    of = batch._durations
    changed, parts = next(of.changed([(fix,)])), batch.dependencies.parts
    durations = np.bincount(parts.node, weights=parts.value_ns, minlength=batch.dependencies.graph.nodes)
    for one in (changed, of.at_ideal()) if changed.from_ideal else (changed,):
        np.add.at(durations, one.node, one.change_ns)
    return durations


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_fix_of_some_ranks_is_the_same_by_what_it_changes_of_the_recording_or_the_ideal(job: str) -> None:
    trace = recorded(SAMPLES / job)
    batch, directions = next(iter(step_batches(trace))), set()
    for ranks in some_ranks(trace):
        fix = Fix(ranks=ranks)
        if not batch._durations._of_many(fix).any():
            directions.add(next(batch._durations.changed([(fix,)])).from_ideal)
            np.testing.assert_allclose(by_change(batch, fix), by_parts(batch, fix), atol=1e-3)
    assert directions == {False, True}
