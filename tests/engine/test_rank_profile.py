"""One rank beside its peers: every moment of the step counted once, and the curve of its completions."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import recorded
from support.places import MEGATRON, SAMPLES
from support.trace_builder import Row, build, trace

from kair_engine.errors import UsageError
from kair_engine.localize.analysis import localize
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.warning_kinds import UnknownMembers
from kair_engine.views.rank_profile import rank_profile


def own(result: RankProfileResult) -> dict[str, float]:
    return {part.part: part.own_us for part in result.parts if part.own_us}


def typical(result: RankProfileResult) -> dict[str, float | None]:
    return {part.part: part.typical_us for part in result.parts if part.typical_us}


ON_DEVICE = """
    step 0: 0+100
    0 main | launch 0+2 ^1 | launch 30+2 ^2 | launch 40+1 ^3
    0 gpu7 | gemm 5+20 ^1 | gemm 35+15 ^2
    0 gpu8 | allreduce@dp#1 45+30 ^3
    1 gpu8 | allreduce@dp#1 65+10
"""


def test_each_moment_of_a_devices_step_counts_once(tmp_path: Path) -> None:
    result = rank_profile(trace(tmp_path, ON_DEVICE), rank=0)
    # Kernels at 5–25 and 35–50; 50–65 the all-reduce waits for rank 1, then takes 10; nothing is launched at 25–30
    # and from 75 on; at 0–5 and 30–35 the launched kernel has not begun.
    assert own(result) == {"compute": 35, "communication": 10, "waiting": 15, "host": 30, "rest": 10}
    assert [part.share for part in result.parts] == [0.35, 0.1, 0.15, 0, 0.3, 0.1]
    assert result.step_time_us == 100


def test_what_a_host_does_counts_only_while_its_device_is_idle(tmp_path: Path) -> None:
    table = """
        step 0: 0+100
        0 main | fetch 0+30 :input /input | launch 30+2 ^1 | fetch 32+20 :input /input | gc 80+10 :gc
        0 gpu7 | gemm 40+30 ^1
    """
    # Fetching keeps it idle until 30; from then on its kernel is launched; after that nothing is.
    assert own(rank_profile(trace(tmp_path, table), rank=0)) == {"compute": 30, "input": 30, "host": 30, "rest": 10}


def test_a_device_may_be_at_the_step_before_when_its_host_begins_the_next(tmp_path: Path) -> None:
    table = """
        step 1: 0+100
        0 main | launch 0+2 ^1
        0 gpu7 | gemm 5+115 ^1
        step 2: 100+100
        0 main | launch 100+2 ^2
        0 gpu7 | gemm 120+95 ^2
    """
    made = trace(tmp_path, table)
    # Step 2 lasts from 100 to 200: until 120 the device is at step 1's kernel, whether that step is asked for or not.
    assert own(rank_profile(made.select([2]), rank=0)) == {"compute": 100}
    assert own(rank_profile(made, rank=0)) == {"compute": 97.5, "rest": 2.5}


def test_without_a_device_the_innermost_operation_of_a_thread_counts(tmp_path: Path) -> None:
    table = """
        step 0: 0+100
        0 main | fetch 0+10 :input /input | aten::stack 2+4 /input | aten::mm 15+20 | c10d::wait 20+10 :host
        0 main | aten::add 22+2 | gc 40+5 :gc | aten::mm 50+10
        0 th2 | aten::mul 55+15
        0 th3 | allreduce@dp#1 24+58
        1 th3 | allreduce@dp#1 70+12
    """
    result = rank_profile(trace(tmp_path, table), rank=0)
    # 15–20, 22–24, 30–35 and 50–60 compute; 40–45 collects garbage; of the rest until 82 the last 12 are transfer.
    # Nobody waits for the second thread.
    assert own(result) == {"compute": 22, "input": 10, "communication": 12, "waiting": 26, "host": 30}


def test_communication_on_the_thread_itself_is_not_the_compute_around_it(tmp_path: Path) -> None:
    table = """
        step 0: 0+100
        0-1 main | aten::mm 0+50 | allreduce@dp#1 10+30
    """
    assert own(rank_profile(trace(tmp_path, table), rank=0)) == {"compute": 20, "communication": 30, "host": 50}


def test_communication_whose_members_are_unknown_is_said_to_be(tmp_path: Path) -> None:
    table = "step 0: 0+100\n0 gpu7 | gemm 0+50 | allreduce@dp#1 50+50\n1 gpu7 | gemm 0+100"
    result = rank_profile(trace(tmp_path, table), rank=0)
    assert own(result) == {"compute": 50, "rest": 50}
    (unknown,) = (warning for warning in result.warnings if isinstance(warning, UnknownMembers))
    assert (unknown.ranks, unknown.share_of_step) == ((0,), 0.5)


def test_the_role_is_what_the_parts_stand_beside(tmp_path: Path) -> None:
    table = "step 0: 0+100\n" + "\n".join(f"{rank} main | aten::mm 0+{rank * 10 + 10}" for rank in range(4))
    result = rank_profile(trace(tmp_path, table + "\nstep 1: 100+60\n0-3 main | aten::mm 100+60"), rank=3)
    assert (own(result), typical(result)) == ({"compute": 50, "host": 30}, {"compute": 42.5, "host": 37.5})
    assert (result.role, result.peers, result.step_time_us, result.typical_step_time_us) == ("all", 3, 80, 80)
    alone = rank_profile(trace(tmp_path / "alone", "0 main | aten::mm 0+10"), rank=0)
    assert (alone.peers, alone.typical_step_time_us, alone.farthest, alone.mean_distance) == (0, None, None, None)
    assert [warning.code for warning in alone.warnings] == ["few_peers"]


def test_the_curve_is_the_share_completed_by_each_time(tmp_path: Path) -> None:
    table = """
        step 0: 0+200
        0 main | a 0+10 | b 10+10 | c 20+20 | d 40+120
        1 main | a 0+10 | b 10+10 | c 20+20 | d 40+20
        2 main | a 0+10 | b 10+10 | c 20+10 | d 40+110
    """
    result = rank_profile(trace(tmp_path, table), rank=0)
    assert [point.time_us for point in result.curve] == list(range(1, 201))
    at = {point.time_us: point for point in result.curve}
    # An operation that ends at 10 is over by 11, the next time at which the curve is known.
    assert [at[time].completed for time in (10, 11, 21, 41, 160, 161)] == [0, 0.25, 0.5, 0.75, 0.75, 1]
    peers = [(at[time].peers_median, at[time].farthest) for time in (11, 31, 41, 61, 151)]
    assert peers == [(0.25, 0.25), (0.625, 0.5), (0.75, 0.75), (0.875, 1), (1, 1)]
    assert at[61].peers_low == pytest.approx(0.775)
    assert at[61].peers_high == pytest.approx(0.975)
    assert result.farthest is not None
    assert (result.farthest.peer, result.farthest.distance, result.farthest.time_us) == (1, 0.25, 61)
    assert (result.farthest.completed, result.farthest.peer_completed) == (0.75, 1)
    assert result.mean_distance == 0.25


def test_curve_and_parts_are_means_over_the_chosen_steps(tmp_path: Path) -> None:
    table = """
        step 0: 0+100
        0-1 main | a 0+10
        step 1: 100+50
        0 main | a 100+40
        1 main | a 100+10
    """
    made = trace(tmp_path, table)
    result = rank_profile(made, rank=0)
    assert {point.completed for point in result.curve if 10.5 <= point.time_us <= 40} == {0.5}
    assert own(result) == {"compute": 25, "host": 50}
    assert own(rank_profile(made.select([1]), rank=0)) == {"compute": 40, "host": 10}


def test_a_rank_without_the_chosen_steps_is_turned_down(tmp_path: Path) -> None:
    made = trace(tmp_path, "step 0: 0+10\n0-1 main | a 0+5\nstep 1: 10+10\n0 main | a 10+5")
    assert rank_profile(made, rank=1).steps == (0,)
    with pytest.raises(UsageError, match="rank 1 recorded none of the chosen steps"):
        rank_profile(made.select([1]), rank=1)
    with pytest.raises(UsageError, match="rank 7 left no trace"):
        rank_profile(made, rank=7)


_PIECES = st.lists(
    st.tuples(st.sampled_from(["compute", "memory", "collective"]), st.integers(0, 90), st.integers(1, 40)),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@given(_PIECES)
def test_parts_are_what_a_look_at_every_moment_finds(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[str, int, int]]
) -> None:
    rows = [
        Row(0, f"gpu{place}", f"op{place}", start, duration, kind=kind)
        for place, (kind, start, duration) in enumerate(pieces)
    ]
    result = rank_profile(build(tmp_path_factory.mktemp("t"), rows, {(0, 0): (0.0, 100.0)}), rank=0)
    end = 100
    # Of one rank alone all communication is with unknown members.
    seen = dict.fromkeys(("compute", "communication", "rest", "host"), 0)
    for moment in range(end):
        busy = {kind for kind, start, duration in pieces if start <= moment < start + duration}
        ahead = any(start > moment for _, start, _ in pieces)
        part = "communication" if busy else "rest" if ahead else "host"
        seen["compute" if busy & {"compute", "memory"} else part] += 1
    assert own(result) == {part: time for part, time in seen.items() if time}
    assert result.step_time_us == end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rank", "part"),
    [("slow_input", 1, "input"), ("slow_operator", 2, "compute"), ("busy_host", 0, "host")],
)
def test_a_culprits_time_goes_where_its_fault_is(name: str, rank: int, part: str) -> None:
    made = recorded(SAMPLES / name)
    result = rank_profile(made, rank=rank)
    extra = {one.part: one.own_us - (one.typical_us or 0) for one in result.parts}
    assert max(extra, key=lambda one: extra[one]) == part
    score = next(score for score in localize(made).scores if score.rank == rank)
    assert extra[part] == pytest.approx(score.excess_us[part], rel=0.1)
    # It is the others that wait; and it completes less than any of them by then.
    assert own(result).get("waiting", 0) < 0.001 * result.step_time_us
    assert result.farthest is not None
    assert result.farthest.completed < result.farthest.peer_completed - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slow_input", "pipeline_slow_operator", "two_hosts_slow_input"])
def test_parts_add_up_to_the_step(name: str) -> None:
    made = recorded(SAMPLES / name)
    times = made.job.step_times
    for rank in made.job.ranks[:3]:
        lengths = [
            length
            for one, step, length in zip(times.rank, times.step, times.duration_ns, strict=True)
            if one == rank and step in made.steps
        ]
        result = rank_profile(made, rank=rank)
        assert result.step_time_us == pytest.approx(sum(lengths) / len(lengths) / 1e3)
        assert sum(part.own_us for part in result.parts) == pytest.approx(result.step_time_us)
        assert sum(part.share for part in result.parts) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.skipif(not MEGATRON.is_dir(), reason="the real traces are not on this machine")
def test_megatrons_two_culprits_are_held_up_by_their_hosts() -> None:
    made = recorded(MEGATRON)
    of = {rank: own(rank_profile(made, rank=rank)) for rank in made.job.ranks}
    assert {rank for rank in of if of[rank]["host"] > 100_000} == {0, 6}
    # One picture with stage 1's, which sums the same delays operation by operation.
    excess = {score.rank: score.excess_us["host"] for score in localize(made).scores}
    base = [of[rank]["host"] - excess[rank] for rank in of]
    assert max(base) - min(base) < 500
    # 131–134 ms of compute on every rank, a few of them once the only step is over; and the same transfers.
    assert all(125_000 < parts["compute"] < 135_000 for parts in of.values())
    assert max(parts["communication"] for parts in of.values()) < 51_000
