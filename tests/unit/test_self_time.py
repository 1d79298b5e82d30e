"""What an operation spends that is its own doing: nested operations, waiting and launches left out."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_builder import Row, build, operations

from kair_engine.timeline.clocks import synchronise
from kair_engine.timeline.self_time import exclusive_ns, host_gap_ns, own_ns, tail_gap_ns
from kair_engine.trace.loading import load_step
from kair_engine.trace.operations import STEP_SCOPE, Operations

PROPERTY = settings(deadline=None, derandomize=True, max_examples=30)


def by_name(ops: Operations, values_ns: Iterable[int]) -> dict[str, float]:
    """Each operation's value in µs; the steps' own scopes left out."""
    named = ((ops.operator(row), value) for row, value in enumerate(values_ns))
    return {name: float(value) / 1e3 for name, value in named if name != STEP_SCOPE}


def test_an_operation_does_not_count_what_is_nested_in_it(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        0 main | forward 10+50 | linear 12+20 | mm 15+10 | relu 40+5 | loss 70+5
        0 th2  | other 20+9
        """,
    )
    assert by_name(ops, exclusive_ns(ops)) == {
        "forward": 25, "linear": 10, "mm": 10, "relu": 5, "loss": 5, "other": 9,
    }  # fmt: skip


def test_an_empty_operation_at_anothers_begin_changes_nothing(tmp_path: Path) -> None:
    ops = operations(tmp_path, "0 main | outer 10+20 | empty 10+0 | inner 15+5 | next 30+5")
    assert by_name(ops, exclusive_ns(ops)) == {"outer": 15, "empty": 0, "inner": 5, "next": 5}


def test_how_long_a_receive_waited_for_a_sender_without_a_trace_is_not_held_against_it(tmp_path: Path) -> None:
    ops = operations(tmp_path, "0-1 main | mm 0+10\n1 main | gloo:recv 20+500 :recv")
    assert by_name(ops, own_ns(ops, synchronise(ops))) == {"mm": 10, "gloo:recv": 0}


def test_a_collective_inside_an_operation_is_not_taken_from_it(tmp_path: Path) -> None:
    ops = operations(tmp_path, "0 main | hook 10+20 | allreduce@dp 12+30 | mm 15+5")
    assert by_name(ops, exclusive_ns(ops)) == {"hook": 15, "allreduce": 30, "mm": 5}


def test_what_a_compiler_takes_is_its_hosts_time(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        0 main | mm 10+5 | dynamo 20+50 | triton_compile 25+40 :host | aten::mm 30+10 :host | gc 35+2 :gc | relu 70+5
        """,
    )
    assert by_name(ops, np.where(ops.compiling, host_gap_ns(ops), 0)) == {
        "mm": 0, "dynamo": 0, "triton_compile": 30, "aten::mm": 8, "gc": 0, "relu": 0,
    }  # fmt: skip
    beside_a_device = operations(tmp_path / "other", "0 main | triton_compile 25+40\n0 gpu7 | gemm 70+5")
    assert not beside_a_device.compiling.any()


def test_scopes_take_no_time(tmp_path: Path) -> None:
    ops = operations(tmp_path, "0 main | layer 0+50 :scope | mm 10+20")
    assert by_name(ops, exclusive_ns(ops)) == {"layer": 0, "mm": 20}


def test_a_fetch_within_a_fetch_counts_once(tmp_path: Path) -> None:
    """As a DataLoader marks it by itself, within a range that its caller marks."""
    ops = operations(
        tmp_path, "0 main | data 0+50 :input /input | enumerate(DataLoader) 5+40 :input /input | stack 10+5 /input"
    )
    assert by_name(ops, own_ns(ops, synchronise(ops))) == {"data": 50, "enumerate(DataLoader)": 0, "stack": 0}


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=12)


def nested(tree: object, begin: int = 0) -> list[tuple[int, int]]:
    """(start, length) of every node of a tree: a list is its children one after another, 1 µs apart."""
    assert isinstance(tree, list)
    found, at = [], begin + 1
    for child in tree:
        inner = nested(child, at)
        found += inner
        at = inner[0][0] + inner[0][1] + 1
    return [(begin, at - begin), *found]


@pytest.mark.slow
@PROPERTY
@given(tree=st.recursive(st.just([]), lambda children: st.lists(children, max_size=4), max_leaves=15))
def test_exclusive_times_of_nested_operations_add_up(tree: list, tmp_path_factory: pytest.TempPathFactory) -> None:
    placed = nested(tree)
    rows = [Row(0, "main", f"op{i}", start, length) for i, (start, length) in enumerate(placed)]
    ops = load_step(build(tmp_path_factory.mktemp("t"), rows, {(0, 0): (0, 1000)}), 0)
    # By hand: of every µs the innermost (latest begun) operation that covers it.
    owner = [max(i for i, (s, n) in enumerate(placed) if s <= t < s + n) for t in range(placed[0][1])]
    assert by_name(ops, exclusive_ns(ops)) == {f"op{i}": owner.count(i) for i in range(len(placed))}


@pytest.mark.slow
@PROPERTY
@given(spans=spans)
def test_operations_that_cross_are_never_longer_than_themselves(
    spans: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [Row(0, "main", f"op{i}", start, length) for i, (start, length) in enumerate(spans)]
    ops = load_step(build(tmp_path_factory.mktemp("t"), rows, {(0, 0): (0, 1000)}), 0)
    exclusive = exclusive_ns(ops)
    assert np.all((exclusive >= 0) & (exclusive <= ops.duration_ns))


def test_own_time_of_a_collective_is_its_shortest_member(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        0 gpu7 | allreduce@dp#1 10+50
        1 gpu7 | allreduce@dp#1 45+15
        2 gpu7 | allreduce@dp#1 20+40
        """,
    )
    assert own_ns(ops, synchronise(ops))[ops.communication].tolist() == [15_000] * 3


def test_an_input_fetch_owns_what_happens_inside_it(tmp_path: Path) -> None:
    ops = operations(tmp_path, "0 main | next 0+30 :input /input | stack 5+10 /input | mm 40+10 /forward")
    assert by_name(ops, own_ns(ops, synchronise(ops))) == {"next": 30, "stack": 0, "mm": 10}


def test_a_stream_is_held_up_from_its_last_kernel_to_the_late_launch(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        step 0: 0+200
        0 main | launch1 0+5 ^1 | launch2 6+5 ^2 | launch3 100+5 ^3
        0 gpu7 | first 10+40 ^1 | in_time 52+10 ^2 | late 110+5 ^3 | unknown 150+5
        """,
    )
    gaps = by_name(ops, host_gap_ns(ops))
    # `late` begins 48 µs after `in_time` ended, but its launch took the last 10 of them.
    assert gaps == {
        "launch1": 0, "launch2": 0, "launch3": 0, "first": 0, "in_time": 0, "late": 38, "unknown": 0,
    }  # fmt: skip


def test_a_first_kernel_is_held_up_from_the_steps_begin(tmp_path: Path) -> None:
    ops = operations(tmp_path, "0 step | 20+80\n0 main | launch 50+5 ^1\n0 gpu7 | first 60+5 ^1")
    assert by_name(ops, host_gap_ns(ops))["first"] == 30


def test_waiting_for_another_stream_is_not_the_hosts_gap(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        step 0: 0+200
        0 main  | launch1 0+5 ^1 | launch2 6+5 ^2 | launch3 60+5 ^3
        0 gpu7  | first 10+40 ^1 | after_copy 93+5 ^3
        0 gpu20 | copy 52+40 ^2 :memory
        1 main  | launch1 0+5 ^1 | launch2 6+5 ^2 | launch3 100+5 ^3
        1 gpu7  | first 10+40 ^1 | after_copy 110+5 ^3
        1 gpu20 | copy 52+40 ^2 :memory
        """,
    )
    gap = host_gap_ns(ops)
    after = [row for row in range(len(ops)) if ops.operator(row) == "after_copy"]
    # Rank 0 launched it while the copy still ran; rank 1 let the device idle from the copy's end at 92.
    assert gap[after].tolist() == [0, 8_000]


def test_a_device_whose_rank_waits_in_communication_that_a_thread_times_is_not_held_up_by_its_host(
    tmp_path: Path,
) -> None:
    ops = operations(
        tmp_path,
        """
        step 0: 0+300
        0 main | launch1 0+5 ^1 | launch2 150+5 ^2
        0 gpu7 | first 10+40 ^1 | next 160+5 ^2
        0 th2  | gloo:all_reduce@dp 50+90 | gloo:all_reduce@dp 60+70
        1 main | launch1 0+5 ^1 | launch2 150+5 ^2
        1 gpu7 | first 10+40 ^1 | next 160+5 ^2
        1 th2  | gloo:all_reduce@dp 130+10 | gloo:all_reduce@dp 131+9
        """,
    )
    gap = host_gap_ns(ops)
    after = [row for row in range(len(ops)) if ops.operator(row) == "next"]
    # From 50 on rank 0 waits until 140, then its host takes 10; rank 1's has taken 80 before it came.
    assert gap[after].tolist() == [10_000, 90_000]


@pytest.mark.parametrize("first", [1, 2**62])
def test_launches_are_found_on_the_same_rank_only(tmp_path: Path, first: int) -> None:
    ops = operations(
        tmp_path,
        f"""
        0 main | launch 0+5 ^{first} | other 6+5
        0 gpu7 | a 10+5 ^{first} | b 20+5 ^{first + 1} | c 30+5
        1 main | launch 0+5 ^{first + 1}
        1 gpu7 | a 10+5 ^{first} | b 20+5 ^{first + 1}
        """,
    )
    launched_by = [ops.operator(row) if row >= 0 else None for row in ops.launch[ops.on_stream]]
    assert launched_by == ["launch", None, None, None, "launch"]


def test_without_a_device_the_gaps_are_the_main_threads(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        step 0: 0+1000
        0 step | 10+900
        0 main | first 15+85 | inner 40+10 | second 130+20
        0 th2  | beside 500+20
        """,
    )
    assert by_name(ops, host_gap_ns(ops)) == {"first": 5, "inner": 0, "second": 30, "beside": 0}
    # 910 is the step's end; the main thread was last busy at 150.
    assert tail_gap_ns(ops).tolist() == [760_000]


def test_a_gap_that_ended_with_a_collective_is_waiting(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        step 0: 0+90000
        0-4 main | backward 0+10000 | optimizer 30000+5000
        0 th2 | allreduce@dp 5000+24000
        1 th2 | allreduce@dp 5000+25800
        2 th2 | allreduce@dp 5000+31200
        3 th2 | allreduce@dp 12000+18800
        4 th2 | allreduce@dp 5000+10000 | allreduce@dp 18000+14000
        """,
    )
    gap = host_gap_ns(ops)[[row for row in range(len(ops)) if ops.operator(row) == "optimizer"]]
    # Rank 0 idled 1 ms after the collective. Rank 1's was recorded 0.8 ms late: it was what the thread waited for.
    # Rank 2's ended 6 ms after the thread went on, and rank 3's began when its thread had been idle for 2 ms. Rank 4
    # idled for 3 ms between two of them.
    assert (gap / 1e6).tolist() == [1, 0, 20, 2, 3]


def test_after_a_long_wait_the_collective_may_be_recorded_later(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        step 0: 0+190000
        0-1 main | backward 0+10000 | optimizer 130000+5000
        0 th2 | allreduce@dp 5000+136000
        1 th2 | allreduce@dp 5000+138000
        """,
    )
    gap = host_gap_ns(ops)[[row for row in range(len(ops)) if ops.operator(row) == "optimizer"]]
    # After 120 ms it is recorded as over up to 12 ms after the thread went on.
    assert (gap / 1e6).tolist() == [0, 120]


def test_what_a_device_idles_at_the_steps_end_is_its_hosts(tmp_path: Path) -> None:
    ops = operations(tmp_path, "0 gpu7 | a 0+10")
    assert tail_gap_ns(ops).tolist() == [90_000]
