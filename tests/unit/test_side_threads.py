"""Threads of jobs without devices: those that the program waits for, and those that nobody does."""

from pathlib import Path

import pytest
from support.trace_builder import operations

from kair_engine.trace.operations import STEP_SCOPE, Operations


def side_threads(ops: Operations) -> set[str]:
    """The operations on threads that nobody waits for."""
    rows = ops.of_side_threads.nonzero()[0].tolist()
    return {ops.operator(row) for row in rows} - {STEP_SCOPE}


def test_a_thread_that_the_program_goes_on_after_is_waited_for(tmp_path: Path) -> None:
    """It is handed work three times a step, and the main thread goes on 20 µs after each."""
    ops = operations(
        tmp_path,
        """
        step 1: 0+30000
        0 main | a 0+1000 | b 9020+1000 | c 18020+1000 | d 27020+1000
        0 th2  | work 1010+7990 | work 10030+7970 | work 19030+7970
        """,
    )
    assert side_threads(ops) == set()


def test_a_thread_whose_work_many_calls_make_up_is_waited_for(tmp_path: Path) -> None:
    calls = " | ".join(f"part {1010 + 50 * at}+45" for at in range(159))
    ops = operations(tmp_path, f"step 1: 0+30000\n0-3 main | a 0+1000 | b 8970+9000 | c 18020+9000\n0-3 th2 | {calls}")
    assert side_threads(ops) == set()


def test_what_a_thread_waits_for_that_is_waited_for_is_as_well(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        step 1: 0+30000
        0 main | a 0+1000 | b 9020+1000 | c 18020+1000 | d 27020+1000
        0 th2  | work 4010+4990 | work 13030+4970 | work 22030+4970
        0 th3  | read 1010+2990 | read 10030+2990 | read 19030+2990
        """,
    )
    assert side_threads(ops) == set()


@pytest.mark.parametrize(("period", "duty"), [(1000, 0.9), (1000, 0.1), (7000, 0.9), (7000, 0.5), (200, 0.5)])
def test_a_thread_that_paces_itself_is_waited_for_by_nobody(tmp_path: Path, period: int, duty: float) -> None:
    """Though the main thread waits for others meanwhile, and sometimes goes on just after one of its ends."""
    writes = " | ".join(f"write {at}+{duty * period}" for at in range(0, 30_000, period))
    waits = " | ".join(f"mm {at}+700" for at in (0, 2100, 4930, 9020, 13170, 18890, 24950, 28100))
    ops = operations(tmp_path, f"step 1: 0+30000\n0 main | {waits}\n0 th2 | {writes}")
    assert side_threads(ops) == {"write"}


def test_the_main_thread_waits_for_nobody_while_it_computes(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        step 1: 0+30000
        0 main | mm 0+9020 | mm 9020+9000 | mm 18020+9000 | mm 27020+2000
        0 th2  | write 1000+8000 | write 10000+8000 | write 19000+8000
        """,
    )
    assert side_threads(ops) == {"write"}


def test_threads_that_communicate_are_waited_for(tmp_path: Path) -> None:
    ops = operations(
        tmp_path, "step 1: 0+3000\n0-1 main | a 0+100\n0-1 th2 | gloo:all_reduce@dp 100+2000 | copy 2100+50"
    )
    assert side_threads(ops) == set()


def test_beside_a_device_threads_are_what_they_were(tmp_path: Path) -> None:
    ops = operations(tmp_path, "step 1: 0+3000\n0 main | a 0+100 ^1\n0 gpu7 | mm 200+100 ^1\n0 th2 | write 0+2000")
    assert side_threads(ops) == set()
