"""What a fault costs, on steps small enough to replay by hand; times in µs."""

from pathlib import Path

import numpy as np
import pytest
from support.places import TRACES
from support.prices import StepPrices, price_steps
from support.trace_builder import Row, build, trace

from kair_engine.recording.opening import open_trace
from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Layout, Trace
from kair_engine.whatif.analysis import whatif


def step_times(made: Trace, *fixes: Fix) -> list[float]:
    """The first step's time in µs under each fix."""
    return (price_steps(made, fixes).scenario_ns[:, 0] / 1e3).tolist()


def two_ranks(folder: Path, *, first: float, second: float) -> Trace:
    """On each rank a kernel of so many µs, launched ahead; then an all-reduce of 10, which the host waits for."""
    last = max(first, second)
    lines = ["step 0: 0+100"]
    for rank, length in enumerate((first, second)):
        end = 5 + last + 10
        lines += [
            f"{rank} step | 0+{end}",
            f"{rank} main | launch 0+1 ^1 | launch 2+1 ^2 | cudaDeviceSynchronize 4+{end - 4} :sync",
            f"{rank} gpu7 | gemm 5+{length} ^1",
            f"{rank} gpu20 | allreduce@dp#1 {5 + length}+{end - 5 - length} ^2",
        ]
    return trace(folder, "\n".join(lines))


def test_what_is_not_changed_takes_as_long_as_it_was_recorded(tmp_path: Path) -> None:
    prices = price_steps(two_ranks(tmp_path, first=30, second=50), [])
    assert prices.measured_ns.tolist() == prices.replayed_ns.tolist() == [65_000]
    assert prices.replay_error.tolist() == [0]
    assert prices.scenario_ns.shape == (0, 1)


def test_fixing_a_slow_kernel_saves_what_it_took_longer_than_its_peer(tmp_path: Path) -> None:
    made = two_ranks(tmp_path, first=30, second=50)
    prices = price_steps(made, [Fix(ranks=(1,)), Fix(operators=("gem*",)), Fix(ranks=(1,), kinds=("compute",))])
    assert prices.scenario_ns[:, 0].tolist() == [45_000] * 3
    assert prices.saved_ns.tolist() == [20_000] * 3


def test_fixing_who_is_not_slow_saves_nothing(tmp_path: Path) -> None:
    made = two_ranks(tmp_path, first=30, second=50)
    unhelpful = (
        Fix(ranks=(0,)),
        Fix(ranks=(1,), kinds=("input",)),
        Fix(operators=("conv*",)),
        Fix(ranks=(7,)),
    )
    assert step_times(made, *unhelpful) == [65] * 4


def test_a_scaled_operator_takes_so_many_times_as_long(tmp_path: Path) -> None:
    made = two_ranks(tmp_path, first=30, second=50)
    assert step_times(
        made,
        Fix(operators=("gemm",), scale=0.5),
        Fix(operators=("gemm",), scale=2.0),
        Fix(operators=("gemm",), ranks=(1,), scale=0.5),
        Fix(operators=("allreduce",), scale=3.0),
    ) == [40, 115, 45, 85]


def test_fixes_can_be_made_together(tmp_path: Path) -> None:
    made = two_ranks(tmp_path, first=30, second=50)
    faster = Fix(operators=("allreduce",), kinds=("communication",), scale=0.5)
    assert (price_steps(made, [(Fix(ranks=(1,)), faster)]).scenario_ns / 1e3).tolist() == [[40]]


FOUR_RANKS = """
    step 0: 0+65
    0-3 main | launch 0+1 ^1 | launch 2+1 ^2 | cudaDeviceSynchronize 4+61 :sync
    0,1 gpu7 | gemm 5+20 ^1
    2 gpu7   | gemm 5+40 ^1
    3 gpu7   | gemm 5+50 ^1
    0,1 gpu20 | allreduce@dp#1 25+40 ^2
    2 gpu20 | allreduce@dp#1 45+20 ^2
    3 gpu20 | allreduce@dp#1 55+10 ^2
"""


def test_of_two_culprits_the_second_keeps_the_step_slow(tmp_path: Path) -> None:
    made = trace(tmp_path, FOUR_RANKS)
    assert step_times(made, Fix(ranks=(3,)), Fix(ranks=(2,)), Fix(ranks=(2, 3))) == [55, 65, 35]


def test_ranks_can_be_named_by_host_and_by_stage(tmp_path: Path) -> None:
    layout = Layout(pp=1, pipeline_stage=dict.fromkeys(range(4), 0))
    made = trace(tmp_path, FOUR_RANKS, hosts={0: "a", 1: "a", 2: "b", 3: "b"}, layout=layout)
    named = (
        Fix(hosts=("b",)),
        Fix(hosts=("a",)),
        Fix(stages=(0,)),
        Fix(stages=(1,)),
    )
    assert step_times(made, *named) == [35, 65, 35, 65]


def test_what_a_transfer_hides_costs_nothing(tmp_path: Path) -> None:
    # The first gradients are reduced while the second are computed: on rank 1 in 10 more, which the transfer outlasts.
    made = trace(
        tmp_path,
        """
        step 0: 0+100
        0-1 main | l 0+1 ^1 | l 2+1 ^2 | l 4+1 ^3 | l 6+1 ^4 | cudaDeviceSynchronize 8+92 :sync
        0 gpu7 | grad1 10+10 ^1 | grad2 20+20 ^3 | adam 80+19 ^4
        1 gpu7 | grad1 10+10 ^1 | grad2 20+30 ^3 | adam 80+19 ^4
        0-1 gpu20 | allreduce@dp#1 20+60 ^2
        """,
    )
    hidden, transfer = step_times(made, Fix(ranks=(1,)), Fix(operators=("allreduce",), scale=0.75))
    assert hidden == 100
    assert transfer == 85


def test_an_optimizer_waits_for_the_gradients_as_it_did(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        step 0: 0+100
        0-1 main | l 0+1 ^1 | l 2+1 ^2 | l 4+1 ^3 | cudaDeviceSynchronize 8+92 :sync
        0 gpu7 | grad 10+20 ^1 | adam 80+20 ^3
        1 gpu7 | grad 10+50 ^1 | adam 80+20 ^3
        0 gpu20 | allreduce@dp#1 30+50 ^2
        1 gpu20 | allreduce@dp#1 60+20 ^2
        """,
    )
    assert step_times(made, Fix(ranks=(1,))) == [70]


def test_a_long_input_fetch_costs_what_the_device_starved_for(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        step 0: 0+100
        0 main | fetch 0+10 :input /input | launch 10+1 ^1 | launch 12+1 ^2 | cudaDeviceSynchronize 14+86 :sync
        1 main | fetch 0+40 :input /input | launch 40+1 ^1 | launch 42+1 ^2 | cudaDeviceSynchronize 44+56 :sync
        0 gpu7 | gemm 11+40 ^1
        1 gpu7 | gemm 41+40 ^1
        0 gpu20 | allreduce@dp#1 51+49 ^2
        1 gpu20 | allreduce@dp#1 81+19 ^2
        """,
    )
    assert step_times(made, Fix(ranks=(1,), kinds=("input",)), Fix(ranks=(1,), kinds=("host",))) == [70, 100]


def test_a_pause_of_the_host_has_its_price_and_garbage_collection_its_own(tmp_path: Path) -> None:
    table = """
        step 0: 0+100
        0,2 main | launch 0+1 ^1 | launch 2+1 ^2 | cudaDeviceSynchronize 4+96 :sync
        1 main | launch 0+1 ^1 | {pause} launch 42+1 ^2 | cudaDeviceSynchronize 44+56 :sync
        0,2 gpu7 | gemm 1+20 ^1 | tail 21+29 ^2
        1 gpu7 | gemm 1+20 ^1 | tail 43+29 ^2
        0,2 gpu20 | allreduce@dp#1 50+50
        1 gpu20 | allreduce@dp#1 72+28
        """
    host, garbage = Fix(ranks=(1,), kinds=("host",)), Fix(ranks=(1,), kinds=("gc",))
    assert step_times(trace(tmp_path / "pause", table.format(pause="")), host, garbage) == [78, 100]
    collected = trace(tmp_path / "gc", table.format(pause="python_gc 2+40 :gc |"))
    assert step_times(collected, host, garbage) == [78, 78]
    # The 40 µs of the collection come back once in 500 steps: 100 - 78 - 40 / 500.
    (planned,) = whatif(collected).remedies
    assert (planned.remedy, planned.collection_us, planned.every_steps) == ("planned_gc", 40, 500)
    assert planned.saved_us == pytest.approx(21.92)
    assert whatif(trace(tmp_path / "none", table.format(pause=""))).remedies == ()


def test_another_kernel_in_place_of_the_peers_is_not_taken_for_an_excess(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        step 0: 0+60
        0-3 main | launch 0+1 ^1 | cudaDeviceSynchronize 4+56 :sync
        0-2 gpu7 | gemm_tile64 1+20 ^1
        3 gpu7 | gemm_tile128 1+20 ^1
        0-3 gpu20 | allreduce@dp#1 21+39
        """,
    )
    assert step_times(made, Fix(ranks=(3,))) == [60]


def test_a_rank_that_ends_late_makes_the_next_step_late(tmp_path: Path) -> None:
    # Rank 1's optimizer takes 20 longer; its peer waits for that in the all-reduce of the next step.
    made = trace(
        tmp_path,
        """
        step 0: 0+50
        1 step | 0+70
        0-1 main | launch 0+1 ^1 | launch 2+1 ^2
        0 main | cudaDeviceSynchronize 4+46 :sync
        1 main | cudaDeviceSynchronize 4+66 :sync
        0-1 gpu20 | allreduce@dp#1 10+10 ^1
        0 gpu7 | adam 20+30 ^2
        1 gpu7 | adam 20+50 ^2
        step 1: 50+70
        1 step | 70+70
        0 main | launch 50+1 ^1 | launch 52+1 ^2 | cudaDeviceSynchronize 54+66 :sync
        1 main | launch 70+1 ^1 | launch 72+1 ^2 | cudaDeviceSynchronize 74+66 :sync
        0 gpu20 | allreduce@dp#2 60+30 ^1
        1 gpu20 | allreduce@dp#2 80+10 ^1
        0 gpu7 | adam 90+30 ^2
        1 gpu7 | adam 90+50 ^2
        """,
    )
    prices = price_steps(made, [Fix(ranks=(1,))])
    assert (prices.scenario_ns / 1e3).tolist() == [[50, 50]]


def test_clocks_that_differ_change_no_price(tmp_path: Path) -> None:
    apart = trace(tmp_path, FOUR_RANKS, shift={1: 3000, 3: -500})
    assert step_times(apart, Fix(ranks=(3,)), Fix(ranks=(2, 3))) == pytest.approx([55, 35])


def test_without_a_device_a_thread_goes_on_when_the_collective_is_over(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        step 0: 0+10000
        0 main | aten::mm 0+3000 | aten::add 9000+1000
        1 main | aten::mm 0+6000 | aten::add 9000+1000
        0 th2 | gloo:all_reduce@dp#1 3010+5990
        1 th2 | gloo:all_reduce@dp#1 6010+2990
        """,
    )
    assert step_times(made, Fix(ranks=(1,)), Fix(ranks=(1,), kinds=("host",))) == [7000, 10000]


def test_communication_that_begins_within_the_call_for_it_waits_for_what_the_call_did(tmp_path: Path) -> None:
    """One all-reduce after another, each waited for: another thread begins the second before its call is over."""
    made = trace(
        tmp_path,
        """
        step 0: 0+10000
        0 main | aten::mm 0+1000 | c10d::allreduce_ 1000+60 | c10d::allreduce_ 7000+60 | aten::add 9000+1000
        1 main | aten::mm 0+5000 | c10d::allreduce_ 5000+60 | c10d::allreduce_ 7000+60 | aten::add 9000+1000
        0 th2  | gloo:all_reduce@dp#1 1020+5970
        1 th2  | gloo:all_reduce@dp#1 5020+1970
        0-1 th3 | gloo:all_reduce@dp#2 7020+1970
        """,
    )
    assert step_times(made, Fix(ranks=(1,))) == pytest.approx([6000], abs=60)


def test_an_operator_that_waits_for_another_thread_ends_with_what_it_waits_for(tmp_path: Path) -> None:
    """As tensor parallelism waits on a CPU (DTensor): in the middle of an operator, with no gap."""
    made = trace(
        tmp_path,
        """
        step 0: 0+10000
        0 main | aten::mm 0+3000 | aten::add 3020+6000 | wait_tensor 3030+5980 :sync | aten::mul 9020+980
        1 main | aten::mm 0+6000 | aten::add 6020+3000 | wait_tensor 6030+2980 :sync | aten::mul 9020+980
        0 th2  | gloo:all_reduce@dp#1 3010+5990
        1 th2  | gloo:all_reduce@dp#1 6010+2990
        """,
    )
    assert step_times(made, Fix(ranks=(1,))) == pytest.approx([7000], abs=30)


def test_beside_a_device_backward_hands_communication_to_threads_after_the_forward_pass(tmp_path: Path) -> None:
    """Gloo of tensors on a GPU, sharded: both passes gather. Rank 1 is 2 ms late in forward, 50 ms before backward."""
    made = trace(
        tmp_path,
        """
        step 0: 0+80000
        0 main   | aten::mm 0+1000 | c10d::allgather_ 1000+60 | launch 9000+1000 ^1
        1 main   | aten::mm 0+3000 | c10d::allgather_ 3000+60 | launch 9000+1000 ^1
        0 th3    | gloo:all_gather@dp#1 1020+7960
        1 th3    | gloo:all_gather@dp#1 3020+5960
        0-1 gpu7 | gemm 10000+1000 ^1
        1 main   | python 10010+48000
        0 th2    | autograd 10100+900 /backward | c10d::allgather_ 11000+60 /backward
        1 th2    | autograd 58100+900 /backward | c10d::allgather_ 59000+60 /backward
        0 th3    | gloo:all_gather@dp#2 11020+50280
        1 th3    | gloo:all_gather@dp#2 59020+2280
        0-1 th4  | note 10800+50 | cudaMemcpyAsync 60900+50 ^2
        0-1 gpu20 | Memcpy 60960+30 ^2
        0-1 th2  | autograd2 61000+1000 /backward | c10d::reduce_ 62000+60 /backward
        0-1 th5  | gloo:reduce@dp#3 62020+1980
        0-1 main | cudaDeviceSynchronize 64000+100 :sync | aten::add 64100+15900
        """,
    )
    assert step_times(made, Fix(), Fix(ranks=(1,), kinds=("host",))) == pytest.approx([30_000, 30_000], abs=300)


@pytest.fixture(scope="module")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> StepPrices:
    if not TRACES.is_dir():
        pytest.skip(f"the real traces are not at {TRACES}")
    made = open_trace(TRACES / "megatron-tp8", cache=tmp_path_factory.mktemp("cache"))
    return price_steps(made, [Fix(ranks=(0, 6)), Fix(ranks=(0, 6), kinds=("host",)), Fix()])


@pytest.mark.slow
def test_a_real_step_is_replayed_as_recorded(megatron: StepPrices) -> None:
    assert megatron.replay_error.max() < 0.01


@pytest.mark.slow
def test_the_culprits_of_a_real_step_have_a_price(megatron: StepPrices) -> None:
    both, of_host, everybody = megatron.saved_ns
    assert 0 < of_host <= both <= everybody < megatron.measured_ns.mean()
    assert not np.isnan(megatron.scenario_ns).any()


def test_work_at_a_steps_end_is_its_operations_and_not_idle_time(tmp_path: Path) -> None:
    """As where a step is taken to end with the optimizer's: what comes before the forward pass ends the step before."""
    rows, spans = [], {}
    for rank in range(4):
        work = 60.0 if rank == 2 else 40.0
        for step, begin in ((3, 0.0), (4, 10.0 + work)):
            met = 5.0 if step == 3 else 75.0  # all wait for rank 2
            rows += [
                Row(rank, "gpu7", "allreduce", begin + 5, met + 2 - begin - 5, step, group="dp", seq=step),
                Row(rank, "main", "cudaStreamSynchronize", begin + 5, met + 2 - begin - 5, step, kind="sync"),
                Row(rank, "main", "encode", met + 5, work, step, kind="compute"),
                Row(rank, "main", "copy", met + 5, 1, step, kind="compute"),
            ]
            spans[rank, step] = (begin, met + 5 + work - begin)
    prices = price_steps(build(tmp_path, rows, spans), [Fix(ranks=(2,), kinds=("compute",))])
    assert prices.replayed_ns == pytest.approx(prices.measured_ns)
    assert prices.measured_ns.tolist() == [50_000, 70_000]
    assert prices.scenario_ns.tolist() == [[50_000, 50_000]]
