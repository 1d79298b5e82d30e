"""Who is compared with whom: roles, logical operators, and how far each lies above its peers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_builder import Row, build, operations, trace

from kair_engine.localize.excess import CLASSES, job_excess
from kair_engine.timeline.roles import PeerGroups, logical_keys, programs, robust_sigma, role_codes, roles, split_off
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import Layout, Trace

PROPERTY = settings(deadline=None, derandomize=True, max_examples=20)


def excess_us(made: Trace, step: int = 0) -> dict[str, list[float]]:
    """Class → excess of every rank, in µs, in the step with that index."""
    found = job_excess(made).steps[step].by_class_ns / 1e3
    return {name: found[row].tolist() for row, name in enumerate(CLASSES)}


def named(made: Trace) -> dict[int, str]:
    return {rank: role.name for rank, role in roles(made).items()}


def test_ranks_with_the_same_operators_have_one_role(tmp_path: Path) -> None:
    assert named(trace(tmp_path, "0-2 main | mm 0+5 | relu 5+1")) == {0: "all", 1: "all", 2: "all"}


def test_ranks_that_call_nearly_the_same_run_one_program_whoever_comes_first() -> None:
    calls = {0: [100.0, 0.0], 1: [100.0, 1.0], 2: [0.0, 100.0], 3: [40.0, 0.0]}
    found = programs({rank: np.array(of) for rank, of in calls.items()}, truncated={3})
    assert found == {0: 0, 1: 0, 2: 1}


def test_ranks_that_communicate_differently_have_another_role(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        "0,2 main | mm 0+5 | send@pp 5+5 :send | allreduce@dp 10+5\n"
        "1,3 main | recv@pp 5+5 :recv | mm 0+5 | allreduce@dp 10+5",
    )
    assert named(made) == {0: "program 0", 1: "program 1", 2: "program 0", 3: "program 1"}


@pytest.mark.parametrize("lane", ["main", "gpu7"])
def test_the_ends_of_a_pipeline_are_no_peers_though_they_call_the_same(tmp_path: Path, lane: str) -> None:
    table = f"""
    0   {lane} | send@a 0+5 :send | send@a 5+5 :send | recv@a 10+5 :recv | recv@a 15+5 :recv
    1,2 {lane} | recv@a 0+5 :recv | send@b 5+5 :send | recv@b 10+5 :recv | send@a 15+5 :send
    3   {lane} | recv@b 0+5 :recv | recv@b 5+5 :recv | send@b 10+5 :send | send@b 15+5 :send
    """
    made = trace(tmp_path, table)
    by_order = {0: "program 0", 1: "program 1", 2: "program 1", 3: "program 1"}
    # What is called together may run on streams in any order.
    assert named(made) == (by_order if lane == "main" else dict.fromkeys(range(4), "all"))
    assert roles(made) == roles(made, load_step(made, 0))


def test_a_collective_more_or_less_is_still_the_same_program(tmp_path: Path) -> None:
    calls = " | ".join(f"allreduce@dp#{at} {at}+1" for at in range(40))
    made = trace(tmp_path, f"0-1 main | {calls}\n2 main | {calls} | barrier@log#0 41+1")
    assert set(named(made).values()) == {"all"}


def test_a_rank_with_other_operators_is_compared_with_the_others_all_the_same(tmp_path: Path) -> None:
    """Extra work, or kernels that autotuning chose, would otherwise hide a slow rank in a role of its own."""
    same = "mm 0+5 | allreduce@dp 10+5"
    made = trace(tmp_path, f"0-2 main | {same}\n3 main | other_mm 0+7 | extra 7+2 | more 9+1 | allreduce@dp 10+5")
    assert set(named(made).values()) == {"all"}


def test_a_rank_that_lacks_the_first_step_has_the_role_of_its_program(tmp_path: Path) -> None:
    table = """
    step 0: 0+10
    0-1 main | a@x 0+1 | b@x 2+1
    2   main | c@y 0+1 | d@y 2+1
    step 1: 10+10
    0-1 main | a@x 10+1 | b@x 12+1
    2-3 main | c@y 10+1 | d@y 12+1
    """
    assert named(trace(tmp_path, table)) == {0: "program 0", 1: "program 0", 2: "program 1", 3: "program 1"}


def test_what_a_host_does_to_launch_is_no_program(tmp_path: Path) -> None:
    made = trace(tmp_path, "0-1 gpu7 | gemm 5+9\n0 main | launch 0+1\n1 main | query 0+1 | query 2+1 | launch 4+1")
    assert set(named(made).values()) == {"all"}


def test_a_known_pipeline_stage_is_the_role(tmp_path: Path) -> None:
    layout = Layout(dp=2, pp=2, pipeline_stage={0: 0, 1: 1, 2: 0, 3: 1})
    made = trace(tmp_path, "0-3 main | mm 0+5", layout=layout)
    assert named(made) == {0: "stage 0", 1: "stage 1", 2: "stage 0", 3: "stage 1"}
    assert [role.stage for role in roles(made).values()] == [0, 1, 0, 1]
    assert role_codes(np.array([0, 1, 2]), roles(made)).tolist() == [0, 1, 0]


def test_a_logical_operator_is_its_name_stage_kind_and_occurrence(tmp_path: Path) -> None:
    ops = operations(
        tmp_path,
        """
        0,1 main | mm 0+5 /forward | mm 10+5 /forward | mm 20+5 /backward | relu 30+5 /forward
        """,
    )
    keys = logical_keys(ops, np.zeros(2, dtype=np.int64))
    own = keys[ops.rank == 0]
    assert keys[ops.rank == 1].tolist() == own.tolist()
    assert len(set(own.tolist())) == len(own)
    apart = logical_keys(ops, np.array([0, 1]))
    assert not set(apart[ops.rank == 0].tolist()) & set(apart[ops.rank == 1].tolist())


def test_a_kernel_is_not_compared_with_the_host_operator_of_its_name(tmp_path: Path) -> None:
    # torch.compile names an operator and the kernel that it launches alike; occurrences are counted by kind.
    ops = operations(tmp_path, "0,1 main | triton_fused 0+50 | launch 10+2 ^1\n0,1 gpu7 | triton_fused 20+9 ^1")
    groups = PeerGroups.of(logical_keys(ops, np.zeros(2, dtype=np.int64)), np.arange(len(ops)))
    assert groups.sizes.tolist() == [2] * (len(ops) // 2)


def test_excess_is_counted_from_the_median_of_the_role(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        step 0: 0+1000
        0 gpu7 | gemm 0+100 | relu 100+10
        1 gpu7 | gemm 0+104 | relu 104+10
        2 gpu7 | gemm 0+110 | relu 110+10
        3 gpu7 | gemm 0+150 | relu 150+8
        """,
    )
    # gemm: median 107; relu: median 10.
    assert excess_us(made)["compute"] == [-7, -3, 3, 41]


def test_roles_have_their_own_medians(tmp_path: Path) -> None:
    table = "0 gpu7 | gemm 0+100\n1 gpu7 | gemm 0+110\n2 gpu7 | gemm 0+300\n3 gpu7 | gemm 0+330"
    layout = Layout(pp=2, pipeline_stage={0: 0, 1: 0, 2: 1, 3: 1})
    assert excess_us(trace(tmp_path, table, layout=layout))["compute"] == [-5, 5, -15, 15]


def test_an_operation_that_nobody_else_runs_is_all_excess(tmp_path: Path) -> None:
    calls = " | ".join(f"gemm {at}+1" for at in range(40))
    made = trace(tmp_path, f"step 0: 0+200\n0-3 gpu7 | {calls}\n2 gpu7 | checkpoint 50+70\n0-2 gpu7 | norm 130+10")
    # Three of four run norm: the median is theirs, and rank 3 spends less.
    assert excess_us(made)["compute"] == [0, 0, 70, -10]


def test_the_same_work_under_another_name_is_no_excess(tmp_path: Path) -> None:
    calls = " | ".join(f"gemm {at}+1" for at in range(40))
    made = trace(tmp_path, f"step 0: 0+200\n0-3 gpu7 | {calls}\n0-2 gpu7 | tile128 50+70\n3 gpu7 | tile64 50+71")
    assert excess_us(made)["compute"] == [0, 0, 0, 1]


def test_a_rank_that_is_alone_in_its_role_has_no_excess(tmp_path: Path) -> None:
    layout = Layout(pp=2, pipeline_stage={0: 0, 1: 1})
    assert excess_us(trace(tmp_path, "0-1 gpu7 | gemm 0+10\n1 gpu7 | loss 20+70", layout=layout))["compute"] == [0, 0]


def test_every_class_gets_what_belongs_to_it(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        step 0: 0+300000
        0-2 main | next 0+20000 :input /input | stack 5000+5000 /input | gemm 30000+100000 | opt 202000+10000
        0-2 th2  | allreduce@dp#1 130000+70000
        3   step | 0+388000
        3   main | next 0+60000 :input /input | stack 5000+9000 /input | gemm 70000+120000 | opt 290000+10000
        3   th2  | allreduce@dp#1 190000+10000
        """,
    )
    excess = excess_us(made)
    assert excess["input"] == [0, 0, 0, 40_000]
    assert excess["compute"] == [0, 0, 0, 20_000]
    # Rank 3's optimizer began 90 ms after the collective, not 2; all paused for 10 ms before gemm, and for 88 at the
    # end. What they waited inside the collective is nobody's excess.
    assert excess["host"] == [0, 0, 0, 88_000]
    assert excess["communication"] == [0, 0, 0, 0]


def test_a_pause_at_the_steps_end_is_the_hosts(tmp_path: Path) -> None:
    made = trace(tmp_path, "0-3 main | mm 0+90\n0-2 step | 0+100\n3 step | 0+160")
    assert excess_us(made)["host"] == [0, 0, 0, 60]


def test_sends_and_receives_are_compared_pair_by_pair(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        0 gpu20 | send@0→1 10+8 :send
        1 gpu20 | recv@0→1 10+8 :recv
        2 gpu20 | send@2→3 10+30 :send
        3 gpu20 | recv@2→3 0+40 :recv
        4 gpu20 | send@4→5 10+8 :send
        5 gpu20 | recv@4→5 0+20 :recv
        """,
        layout=Layout(pp=2, pipeline_stage={rank: rank % 2 for rank in range(6)}),
    )
    # The pairs took 8, 30 and 8 µs: how long a receiver waited for its sender does not count.
    assert excess_us(made)["communication"] == [0, 0, 22, 22, 0, 0]


def test_a_rank_without_the_step_has_no_excess_in_it(tmp_path: Path) -> None:
    made = trace(tmp_path, "step 0: 0+100\n0-3 main | mm 0+5\nstep 1: 100+100\n0-2 main | mm 100+5")
    found = job_excess(made)
    assert not np.isnan(found.steps[0].by_class_ns).any()
    assert np.isnan(found.steps[1].by_class_ns).tolist() == [[False, False, False, True]] * len(CLASSES)


@pytest.mark.slow
@PROPERTY
@given(
    durations=st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=2, max_size=6),
)
def test_excesses_are_the_formula(durations: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    ranks, calls = len(durations), 3
    rows = [
        Row(rank, "gpu7", "gemm", call * 1000, durations[rank][call]) for rank in range(ranks) for call in range(calls)
    ]
    made = build(tmp_path_factory.mktemp("t"), rows, {(rank, 0): (0, 5000) for rank in range(ranks)})
    # Of skewed durations the median of the sums is not the sum of the medians: the sums are compared.
    usual = np.median([sum(of_rank) for of_rank in durations])
    expected = [sum(of_rank) - usual for of_rank in durations]
    assert excess_us(made)["compute"] == pytest.approx(expected, abs=1e-6)


def test_a_rank_is_taken_out_of_the_peers_it_is_held_against(tmp_path: Path) -> None:
    ops = load_step(trace(tmp_path, "0-3 gpu7 | gemm 0+10 | relu 20+10\n1-3 gpu7 | tail 40+10"), 0)
    keys = logical_keys(ops, np.zeros(4, dtype=np.int64))
    kernels = np.flatnonzero(ops.on_stream)
    seen = set()
    for block in PeerGroups.of(keys, kernels).blocks(smallest=2):
        mine, others = split_off(ops, block, 0)
        for row, peers in zip(mine, others, strict=True):
            assert ops.rank[row] == 0
            assert sorted(ops.rank[peers].tolist()) == [1, 2, 3]
            seen.add(ops.operator(int(row)))
    assert seen == {"gemm", "relu"}


def test_the_robust_spread_is_the_scaled_median_deviation() -> None:
    assert robust_sigma(np.array([[1.0, 2, 3, 4, 100], [5, 5, 5, 5, 5]])).tolist() == [1.4826, 0.0]


def test_roles_are_the_same_from_a_step_that_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trace(
        tmp_path,
        "step 0: 0+100\n0-1 gpu7 | a 0+5 | all_reduce 10+5 :collective\n2-3 gpu7 | a 0+5 | send 10+5 :send | b 20+5",
    )
    read = roles(made)
    assert len(set(read.values())) == 2
    step = load_step(made, 0)
    monkeypatch.setattr("kair_engine.timeline.roles.read_chosen", lambda *_: pytest.fail("it was read again"))
    assert roles(made, step) == read


def larger(made: Trace, name: str) -> list[float]:
    """By what share a call of an operator is given more than usual on each rank, -1 where that is not told."""
    return np.nan_to_num(job_excess(made).larger_inputs(name, np.array([True]))[0], nan=-1.0).tolist()


def test_what_operators_are_given_is_compared_by_call(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        "step 0: 0+30\n0-1 main | mm 0+5 =100\n2 main | mm 0+5 =100 | mm 6+5 =300\n3 main | mm 0+9",
    )
    assert larger(made, "mm") == [0, 0, 1, -1]


def test_kernels_are_given_what_the_operator_around_their_launch_is(tmp_path: Path) -> None:
    """The innermost that tells: a copy within the matrix product's operator, which tells nothing, does not hide it."""
    made = trace(
        tmp_path,
        """
        step 0: 0+30
        0-1 main | linear 0+9 =999 | mm 1+7 =100 | copy 2+4 | launch 3+1 ^7 | launch 20+1 ^8
        0-1 gpu7 | gemm 5+5 ^7 | fill 21+1 ^8
        2   main | linear 0+9 =999 | mm 1+7 =160 | copy 2+4 | launch 3+1 ^7 | launch 20+1 ^8
        2   gpu7 | gemm 5+9 ^7 | fill 21+5 ^8
        """,
    )
    assert larger(made, "gemm") == pytest.approx([0, 0, 0.6])
    assert larger(made, "fill") == [-1, -1, -1]
