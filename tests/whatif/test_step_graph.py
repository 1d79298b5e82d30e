"""What operations of a step wait for beyond their launches: threads that hand work over, devices that are full."""

from pathlib import Path

import numpy as np
import pytest
from support.trace_builder import operations

from kair_engine.timeline.clocks import synchronise
from kair_engine.trace.operations import Operations
from kair_engine.whatif.operators.host_events import host_events
from kair_engine.whatif.operators.step_graph import step_graph

NOBODY = np.zeros(0, dtype=np.int64)


def named(ops: Operations, row: int) -> str:
    return ops.name_text[int(ops.name[row])]


def waits_of_threads(ops: Operations) -> list[tuple[str, str]]:
    """(who waited on a thread, whose end it waited for)."""
    events = host_events(ops)
    waited = events.row[events.waits_event]
    return [(named(ops, one), named(ops, other)) for one, other in zip(waited, events.waits_for, strict=True)]


@pytest.mark.parametrize(("begins", "waits"), [(4020, True), (4600, False)])
def test_backward_waits_for_what_the_main_thread_did_before_though_hardly_all_of_that_is_recorded(
    tmp_path: Path, begins: float, waits: bool
) -> None:
    """Two operators in 4 ms; in between the main thread runs Python. Backward begins as the second one is over."""
    table = f"""
        step 0: 0+10000
        0 main | launch 0+10 ^1 | sum 3980+20
        0 th2 | first 1+2 /backward | launch {begins}+10 ^2 /backward
        0 gpu7 | add 20+5 ^1 | add 5000+5 ^2
    """
    found = waits_of_threads(operations(tmp_path, table))
    assert (("launch", "sum") in found) == waits


@pytest.mark.parametrize(("begins", "waits"), [(3490, True), (3000, False)])
def test_a_collective_that_begins_as_another_streams_kernel_ends_waited_for_a_full_device(
    tmp_path: Path, begins: float, waits: bool
) -> None:
    """Launched at 20 µs; another stream's kernel takes from 10 to 3500."""
    table = f"""
        step 0: 0+5000
        0-1 main | launch 0+5 ^1 | launch 15+5 ^2
        0-1 gpu7 | gemm 10+3490 ^1
        0-1 gpu20 | allreduce@dp#1 {begins}+100 ^2
    """
    ops = operations(tmp_path, table)
    graph = step_graph(ops, synchronise(ops), NOBODY, NOBODY)
    gemm = [row for row in range(len(ops)) if named(ops, row) == "gemm"]
    reduce = [row for row in range(len(ops)) if named(ops, row) == "allreduce"]
    edges = set(zip(graph.before.tolist(), graph.after.tolist(), strict=True))
    found = [(graph.over[one], graph.arrival[other]) in edges for one, other in zip(gemm, reduce, strict=True)]
    assert found == [waits] * 2


def test_streams_that_nobody_of_the_program_launches_on_pace_themselves(tmp_path: Path) -> None:
    """A checkpoint's thread copies on a stream of its own."""
    table = """
        step 0: 0+1000
        0 main | launch 0+5 ^1 | launch 100+5 ^3
        0 th9 | launch 20+5 ^2
        0 gpu7 | gemm 10+50 ^1 | gemm 110+50 ^3
        0 gpu30 | Memcpy 30+100 ^2 :memory
    """
    ops = operations(tmp_path, table)
    assert [named(ops, row) for row in np.flatnonzero(ops.of_side_streams)] == ["Memcpy"]
