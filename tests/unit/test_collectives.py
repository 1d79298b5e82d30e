"""Which rows are one collective, what its members waited for one another, and the clocks they imply."""

from pathlib import Path

import numpy as np
import pytest
from support.trace_builder import operations, trace

from kair_engine.arrays import dense
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.collectives import Collectives, match
from kair_engine.trace.loading import load_step


def members(collectives: Collectives) -> list[list[tuple[int, float]]]:
    """Per collective its members as (rank, start in µs)."""
    ops = collectives.ops
    found: list[list[tuple[int, float]]] = [[] for _ in range(len(collectives))]
    for row, instance in zip(collectives.row, collectives.instance, strict=True):
        found[instance].append((int(ops.ranks[ops.rank[row]]), float(ops.start_ns[row]) / 1e3))
    return [sorted(one) for one in found]


def synchronised(folder: Path, table: str) -> Synchronisation:
    return synchronise(operations(folder, table))


def test_group_and_sequence_number_say_which_rows_belong_together(tmp_path: Path) -> None:
    found = match(
        operations(
            tmp_path,
            """
            0 gpu7 | allreduce@dp#4 10+5 | allreduce@dp#5 20+5
            1 gpu7 | allreduce@dp#5 21+5 | allreduce@dp#4 30+5
            """,
        )
    )
    assert members(found) == [[(0, 10), (1, 30)], [(0, 20), (1, 21)]]
    assert found.rejected == 0


def test_without_numbers_the_order_on_each_rank_says_it(tmp_path: Path) -> None:
    found = match(
        operations(
            tmp_path,
            """
            0 gpu7 | allreduce@dp 10+5 | allgather@dp 16+2 | allreduce@dp 20+5
            1 gpu7 | allgather@dp 11+2 | allreduce@dp 14+5 | allreduce@dp 21+5
            """,
        )
    )
    assert members(found) == [[(0, 10), (1, 14)], [(0, 16), (1, 11)], [(0, 20), (1, 21)]]


def test_numbers_that_one_rank_lacks_leave_the_order(tmp_path: Path) -> None:
    table = """
        0,1 gpu7 | allreduce@dp#4 10+5 | allreduce@dp#5 20+5
        2   gpu7 | allreduce@dp 10+5 | allreduce@dp 20+5
        """
    assert [len(one) for one in members(match(operations(tmp_path, table)))] == [3, 3]


def test_groups_of_other_names_stay_apart(tmp_path: Path) -> None:
    found = match(
        operations(
            tmp_path,
            """
            0,1 gpu7 | allreduce@tp0#1 10+5 | allreduce@world#1 20+5
            2,3 gpu7 | allreduce@tp1#1 10+5 | allreduce@world#1 20+5
            """,
        )
    )
    assert [[rank for rank, _ in one] for one in members(found)] == [[0, 1], [2, 3], [0, 1, 2, 3]]


def test_a_collective_that_lacks_a_member_is_left_out_and_counted(tmp_path: Path) -> None:
    found = match(
        operations(
            tmp_path,
            """
            0,1 gpu7 | allreduce@dp#4 10+5 | allreduce@dp#5 20+5
            2   gpu7 | allreduce@dp#4 10+5
            """,
        )
    )
    assert members(found) == [[(0, 10), (1, 10), (2, 10)]]
    assert found.rejected == 1


def test_two_on_one_rank_are_left_out_and_counted(tmp_path: Path) -> None:
    found = match(
        operations(
            tmp_path,
            """
            0 gpu7 | allreduce@dp#4 10+5 | allreduce@dp#5 20+5 | allreduce@dp#5 30+5
            1 gpu7 | allreduce@dp#4 10+5 | allreduce@dp#5 30+5
            """,
        )
    )
    assert members(found) == [[(0, 10), (1, 10)]]
    assert found.rejected == 1


def test_kernels_that_share_a_number_on_every_rank_are_taken_in_order(tmp_path: Path) -> None:
    found = match(operations(tmp_path, "0-1 gpu7 | allreduce@dp#4 10+5 | allreduce@dp#4 20+5"))
    assert members(found) == [[(0, 10), (1, 10)], [(0, 20), (1, 20)]]


def test_one_too_few_on_a_rank_does_not_shift_those_that_follow(tmp_path: Path) -> None:
    # Every 10 ms; rank 2's first was lost. Its second lies 10 ms after the others' first, its third after their
    # second: matched in order, they would look like a clock that is 10 ms ahead.
    full = " | ".join(f"allreduce@dp {at}+2000" for at in range(5000, 55_000, 10_000))
    rest = " | ".join(f"allreduce@dp {at}+2000" for at in range(15_000, 55_000, 10_000))
    found = synchronised(tmp_path, f"step 0: 0+60000\n0,1,3 gpu7 | {full}\n2 gpu7 | {rest}")
    assert len(found.collectives) == 0
    assert found.collectives.rejected == 5
    assert found.clocks.offset_ns.tolist() == [0, 0, 0, 0]


def test_waiting_is_the_time_beyond_the_shortest_member(tmp_path: Path) -> None:
    found = synchronised(
        tmp_path,
        """
        0 gpu7 | allreduce@dp#1 10+50
        1 gpu7 | allreduce@dp#1 45+15
        2 gpu7 | allreduce@dp#1 20+40
        3 gpu7 | allreduce@dp#1 40+20
        """,
    )
    collectives = found.collectives
    assert collectives.own_ns.tolist() == [15_000]
    assert collectives.wait_ns.tolist() == [35_000, 0, 25_000, 5_000]
    assert collectives.total_wait_ns.tolist() == [65_000]
    assert collectives.last.tolist() == [1]
    # Rank 1 came 5 µs after the last but one, and 15 after the median of 10, 20, 40 and 45.
    assert collectives.lead_ns.tolist() == [5_000]
    assert found.lateness_of_last_ns.tolist() == [15_000]


def test_of_two_last_ones_the_lower_rank_counts(tmp_path: Path) -> None:
    found = synchronised(tmp_path, "0 gpu7 | allreduce@dp 0+30\n1-2 gpu7 | allreduce@dp 20+10").collectives
    assert found.last.tolist() == [1]
    assert found.lead_ns.tolist() == [0]


def test_a_send_and_its_receive_are_a_pair(tmp_path: Path) -> None:
    found = match(
        operations(
            tmp_path,
            """
            0 gpu20 | send@0→1 10+5 :send | send@0→1 30+5 :send
            1 gpu21 | recv@0→1 11+5 :recv | recv@0→1 31+5 :recv
            """,
        )
    )
    assert members(found) == [[(0, 10), (1, 11)], [(0, 30), (1, 31)]]


def test_who_sends_and_goes_on_waits_for_nobody(tmp_path: Path) -> None:
    """An asynchronous send is recorded until somebody asks whether it is over; its thread computes in the meantime."""
    found = match(
        operations(
            tmp_path,
            """
            0 main | send@0→1 0+90 :send | mm 2+30 | send@0→1 32+58 :send | mm 34+50
            1 main | mm 0+60 | recv@0→1 60+3 :recv | recv@0→1 64+3 :recv
            """,
        )
    )
    assert found.own_ns.tolist() == [2_000, 2_000]
    assert found.total_wait_ns.tolist() == [1_000, 1_000]


def test_a_send_that_its_thread_stands_still_for_waits(tmp_path: Path) -> None:
    table = "0 main | send@0→1 0+62 :send | mm 62+30\n1 main | mm 0+60 | recv@0→1 60+2 :recv"
    found = match(operations(tmp_path, table))
    assert found.total_wait_ns.tolist() == [60_000]
    assert found.ops.rank[found.row[found.last]].tolist() == [1]


@pytest.mark.parametrize(
    "table",
    [
        # A chain of three ranks in one group: rank 1 receives from rank 0 and sends to rank 2.
        "0 gpu7 | send@pp 10+5 :send\n1 gpu7 | recv@pp 10+5 :recv | send@pp 20+5 :send\n2 gpu7 | recv@pp 20+5 :recv",
        "0,1 gpu7 | send@pp 10+5 :send",
        "0,1,2 gpu7 | recv@pp#3 10+5 :recv",
    ],
)
def test_what_is_not_one_send_and_one_receive_is_left_out(tmp_path: Path, table: str) -> None:
    found = match(operations(tmp_path, table))
    assert len(found) == 0
    assert found.rejected >= 1


def test_process_groups_of_one_name_that_cannot_be_one_collective_are_left_out(tmp_path: Path) -> None:
    # Two tensor-parallel pairs whose trace names no group: their second calls are 1 ms apart.
    found = synchronised(
        tmp_path,
        """
        step 0: 0+5000
        0-1 gpu7 | nccl 10+50 :collective | nccl 1000+50 :collective | nccl 3000+50 :collective
        2-3 gpu7 | nccl 12+48 :collective | nccl 2000+50 :collective | nccl 3001+49 :collective
        """,
    )
    assert [one[0][1] for one in members(found.collectives)] == [10, 3000]
    assert found.collectives.rejected == 1


@pytest.mark.parametrize(("group", "kept"), [("", 0), ("@dp", 3)])
def test_process_groups_of_one_name_that_do_not_leave_together_are_left_out(
    tmp_path: Path, group: str, kept: int
) -> None:
    # They overlap, but two pairs end as far apart as they began. Where the group is named, it is believed.
    table = """
    step 0: 0+20000
    0-1 gpu7 | nccl 10+2000 :collective   | nccl 5010+2000 :collective | nccl 9010+2000 :collective
    2-3 gpu7 | nccl 1010+2000 :collective | nccl 4210+2000 :collective | nccl 10510+2000 :collective
    """
    found = synchronised(tmp_path, table.replace("nccl", f"nccl{group}"))
    assert (len(found.collectives), found.collectives.rejected) == (kept, 3 - kept)


def test_a_collective_without_peers_is_none(tmp_path: Path) -> None:
    found = synchronised(tmp_path, "0 gpu7 | allreduce@dp 10+5")
    assert len(found.collectives) == found.collectives.rejected == 0
    assert found.clocks.residual_ns is None
    assert len(found.lateness_of_last_ns) == 0


def test_a_trace_without_operations_has_no_collectives(tmp_path: Path) -> None:
    found = synchronise(load_step(trace(tmp_path, "step 0: 0+10\n0-1 step | 0+10"), 0))
    assert len(found.collectives) == 0


def test_clocks_are_set_by_the_ends_of_collectives(tmp_path: Path) -> None:
    table = """
    step 0: 0+500
    0 gpu7 | allreduce@dp#1 10+50 | allreduce@dp#2 110+50 | allreduce@dp#3 210+52
    1 gpu7 | allreduce@dp#1 45+15 | allreduce@dp#2 120+40 | allreduce@dp#3 210+50
    2 gpu7 | allreduce@dp#1 20+40 | allreduce@dp#2 110+50 | allreduce@dp#3 230+30
    """
    found = synchronise(operations(tmp_path, table, shift={1: 5000}))
    assert found.clocks.offset_ns.tolist() == [0, 5_000_000, 0]
    # Only the third collective of rank 0 ended apart from the others, by 2 µs: the median member agrees.
    assert found.clocks.residual_ns == 0
    assert members(found.collectives)[0] == [(0, 10), (1, 5045), (2, 20)]


def test_sends_do_not_set_clocks(tmp_path: Path) -> None:
    found = synchronised(tmp_path, "0 gpu7 | send@a 10+5 :send\n1 gpu7 | recv@a 10+50 :recv")
    assert len(found.collectives) == 1
    assert found.clocks.residual_ns is None
    assert np.all(found.clocks.offset_ns == 0)


def test_sequence_numbers_of_any_size_are_told_apart() -> None:
    lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert dense(np.array([[lowest, highest, 0, lowest]])).tolist() == [0, 2, 1, 0]
