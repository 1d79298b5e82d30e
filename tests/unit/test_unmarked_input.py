"""The host's idle time in which a loop may have fetched its batch: between its optimizer and its model."""

from pathlib import Path

import pytest
from support.trace_builder import operations

from kair_engine.timeline.inputs import unmarked_fetching_ns
from kair_engine.timeline.self_time import host_gap_ns

LOOP = "aten::randint {} | aten::to 40+2 /forward | aten::addmm 50+10 /forward | aten::add_ 80+10 /optimizer"


def fetched_us(folder: Path, table: str) -> list[float]:
    ops = operations(folder, table)
    return [float(value) / 1e3 for value in unmarked_fetching_ns(ops, host_gap_ns(ops))]


def test_idle_time_before_and_between_what_draws_a_batch_counts(tmp_path: Path) -> None:
    """25 µs before the batch is drawn, 10 until it is moved; the 8 before the model are the model's own."""
    rows = LOOP.format("25+5 /forward")
    assert fetched_us(tmp_path, f"0 main | {rows}\n1 main | {LOOP.format('0+40 /forward')}") == [25 + 10, 0]


def test_it_follows_the_optimizer_where_a_step_begins_with_the_model(tmp_path: Path) -> None:
    """As capture marks steps: 30 µs after the optimizer's last operation, and 1 µs between what draws the batch."""
    rows = "aten::embedding 10+10 /forward | aten::add_ 30+10 /optimizer | aten::randint 70+5 /forward"
    assert fetched_us(tmp_path, f"0 main | {rows} | aten::to 76+1 /forward") == [30 + 1]


@pytest.mark.parametrize(("after", "idle_us"), [("aten::conv2d", 30), ("c10d::allreduce_", 0), ("autograd::x", 0)])
def test_what_comes_straight_after_the_optimizer(tmp_path: Path, after: str, idle_us: float) -> None:
    """A batch that no operator draws is fetched before the model; who communicates has fetched nothing."""
    rows = f"aten::mm 0+20 /forward | aten::add_ 20+20 /optimizer | {after} 70+10 /forward | aten::relu 85+5 /forward"
    assert fetched_us(tmp_path, f"0 main | {rows}") == [idle_us]


def test_marked_input_tells_where_it_is_fetched(tmp_path: Path) -> None:
    table = f"0-1 main | {LOOP.format('25+5 /forward')}\n1 main | data 0+5 :input /input"
    assert fetched_us(tmp_path, table) == [35, 0]


def test_where_no_name_tells_the_model_nothing_tells_its_begin(tmp_path: Path) -> None:
    rows = "triton_poi_fused_0 20+10 /forward | triton_red_fused_1 50+10 /forward | aten::add_ 80+10 /optimizer"
    assert fetched_us(tmp_path, f"0 main | {rows}") == [0]


def test_of_a_device_it_is_what_its_stream_waits_for(tmp_path: Path) -> None:
    """The copy is launched 30 µs after the optimizer's kernel is over."""
    table = """
    0 main | launch 1+1 ^1 | launch 3+1 ^2 | launch 60+1 ^3 | launch 62+1 ^4
    0 gpu7 | gemm 5+15 ^1 /forward | adam 20+10 ^2 /optimizer | copy 61+4 ^3 :memory /forward | gemm 70+5 ^4 /forward
    """
    assert fetched_us(tmp_path, table) == [30]


def test_nobody_who_ran_nothing_fetched(tmp_path: Path) -> None:
    assert fetched_us(tmp_path, "0 step | 0+100") == [0]
