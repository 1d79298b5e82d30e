"""Stage 3 on small steps: whom the others waited for, and what had made that one late."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.places import SAMPLES
from support.trace_builder import trace

import kair
from kair_engine.blame import analysis
from kair_engine.blame.analysis import blame
from kair_engine.blame.walk import Walk, walk_back
from kair_engine.errors import UsageError
from kair_engine.results.blame import BlameResult, PathNode
from kair_engine.timeline.graph import ExecutionGraph, Lateness
from kair_engine.trace.batches import keeping_steps
from kair_engine.trace.model import Layout
from kair_engine.triage.analysis import triage
from kair_tui.render.blame_paths import blame_totals

# A kernel, then a collective on a stream of its own; rank 3 is late to it by 200 µs, for one reason or another.
HEALTHY = """
0-2 main  | aten::mm 0+10 | launch 2+3 ^1 | aten::view 12+5 | c10d::allreduce_ 20+10 | launch 22+3 ^2
0-2 gpu7  | gemm 10+14 ^1
0-2 gpu20 | allreduce@dp#1 26+230 ^2
"""
LATE_LAUNCH = """
3 gpu7  | gemm 10+14 ^1
3 gpu20 | allreduce@dp#1 226+30 ^2
"""

Cause = tuple[int, str | None, str, bool, float]


def causes(result: BlameResult) -> list[Cause]:
    """(rank, operator, cause, is_edge, blamed µs) of every root cause."""
    return [(c.rank, c.operator, c.cause, c.is_edge, round(c.blamed_us, 3)) for c in result.root_causes]


def blamed(folder: Path, *tables: str, **how: dict[int, float]) -> BlameResult:
    return blame(trace(folder, "step 0: 0+1000" + "".join(f"\n{table}" for table in tables), **how))


def stops(nodes: tuple[PathNode, ...]) -> list[tuple[int, str, str]]:
    return [(node.rank, node.operator, node.role_in_path) for node in nodes]


def test_a_slow_kernel_is_the_cause_and_its_victims_are_not(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        HEALTHY,
        "3 main  | aten::mm 0+10 | launch 2+3 ^1 | aten::view 12+5 | c10d::allreduce_ 20+10 | launch 22+3 ^2",
        "3 gpu7  | gemm 10+214 ^1",
        "3 gpu20 | allreduce@dp#1 226+30 ^2",
    )
    assert causes(result) == [(3, "gemm", "compute", False, 600)]
    assert (result.root_causes[0].share, result.root_causes[0].steps) == (1, (0,))
    assert [(r.rank, r.blamed_us, r.share, r.arrived_last) for r in result.by_rank] == [(3, 600, 1, 1)]
    assert (result.waiting_us, result.attributed_us, result.unattributed_us, result.collectives) == (600, 600, 0, 1)


def test_where_steps_are_kept_blame_walks_the_way_that_triage_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = trace(tmp_path, f"step 0: 0+1000\n{HEALTHY}\n{LATE_LAUNCH}\n3 main | launch 22+3 ^2")
    kept, alone = keeping_steps(read), blame(read)
    triage(kept)
    monkeypatch.delattr(analysis, "walk_back")
    assert blame(kept) == alone
    assert alone.waiting_us > 0


def test_a_path_leads_from_a_victim_through_the_last_to_arrive_to_the_culprit(tmp_path: Path) -> None:
    (path,) = blamed(
        tmp_path,
        HEALTHY,
        "3 main  | aten::mm 0+10 | launch 2+3 ^1 | aten::view 12+5 | c10d::allreduce_ 20+10 | launch 22+3 ^2",
        "3 gpu7  | gemm 10+214 ^1",
        "3 gpu20 | allreduce@dp#1 226+30 ^2",
    ).paths
    assert stops((path.symptom,)) == [(0, "allreduce", "victim")]
    assert stops(path.chain) == [(3, "allreduce", "victim"), (3, "gemm", "culprit")]
    assert (path.symptom.start_us, path.symptom.duration_us) == (26, 230)
    assert (path.chain[0].kind, path.chain[0].lateness_us, path.chain[1].lateness_us) == ("collective", 200, 0)
    assert (path.cause, path.waited_us, path.step) == ("compute", 600, 0)


def test_a_slow_host_operator_before_the_launch_is_the_cause(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        HEALTHY,
        "3 main | aten::mm 0+10 | launch 2+3 ^1 | aten::view 12+205 | c10d::allreduce_ 220+10 | launch 222+3 ^2",
        LATE_LAUNCH,
    )
    assert causes(result) == [(3, "aten::view", "host", False, 600)]
    assert stops(result.paths[0].chain) == [
        (3, "allreduce", "victim"), (3, "launch", "victim"), (3, "aten::view", "culprit"),
    ]  # fmt: skip


def test_a_slow_launch_is_the_cause_itself(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        HEALTHY,
        "3 main | aten::mm 0+10 | launch 2+3 ^1 | aten::view 12+5 | c10d::allreduce_ 20+210 | launch 22+203 ^2",
        LATE_LAUNCH,
    )
    assert causes(result) == [(3, "launch", "host", False, 600)]


def test_time_lost_inside_an_operator_after_its_nested_ones_is_its_own(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        HEALTHY,
        "3 main | aten::mm 0+210 | launch 2+3 ^1 | aten::view 212+5 | c10d::allreduce_ 220+10 | launch 222+3 ^2",
        LATE_LAUNCH,
    )
    assert causes(result) == [(3, "aten::mm", "host", False, 600)]


def test_time_lost_inside_an_operator_before_its_nested_ones_is_its_own(tmp_path: Path) -> None:
    # aten::mm ends when it always does: what its launch lost before it began was made up for after it.
    result = blamed(
        tmp_path,
        """
        0-2 main  | aten::mm 0+300 | launch 2+3 ^1
        0-2 gpu20 | allreduce@dp#1 26+230 ^1
        3   main  | aten::mm 0+300 | launch 202+3 ^1
        3   gpu20 | allreduce@dp#1 226+30 ^1
        """,
    )
    assert causes(result) == [(3, "aten::mm", "host", False, 600)]


IDLE_HOST = """
3 main | aten::mm 0+10 | launch 2+3 ^1 | aten::view 12+5 | c10d::allreduce_ 220+10 | launch 222+3 ^2
"""


def test_an_idle_host_is_an_edge(tmp_path: Path) -> None:
    result = blamed(tmp_path, HEALTHY, IDLE_HOST, LATE_LAUNCH)
    assert causes(result) == [(3, "c10d::allreduce_", "host", True, 600)]
    assert result.paths[0].chain[-1].role_in_path == "edge"


@pytest.mark.parametrize("lane", ["th2", "main"])
def test_an_idle_host_that_collected_garbage_is_garbage_collection(tmp_path: Path, lane: str) -> None:
    result = blamed(tmp_path, HEALTHY, IDLE_HOST, LATE_LAUNCH, f"3 {lane} | gc 20+190 :gc")
    (found,) = causes(result)
    assert (found[0], found[2], found[4]) == (3, "garbage_collection", 600)


def test_a_short_collection_in_a_long_gap_is_not_its_cause(tmp_path: Path) -> None:
    result = blamed(tmp_path, HEALTHY, IDLE_HOST, LATE_LAUNCH, "3 th2 | gc 20+50 :gc")
    assert causes(result)[0][:4] == (3, "c10d::allreduce_", "host", True)


def test_an_operator_that_only_the_late_rank_runs_is_the_cause(tmp_path: Path) -> None:
    result = blamed(tmp_path, HEALTHY, IDLE_HOST, LATE_LAUNCH, "3 main | save_checkpoint 18+195")
    assert causes(result) == [(3, "save_checkpoint", "host", False, 600)]


def test_a_host_that_waited_for_its_slow_device_is_not_the_cause(tmp_path: Path) -> None:
    # The host reads a result back before it goes on, so a slow kernel makes the next launch late.
    result = blamed(
        tmp_path,
        """
        0-2 main  | aten::mm 0+10 | launch 2+3 ^1 | synchronize 12+13 :sync | c10d::allreduce_ 30+10 | launch 32+3 ^2
        0-2 gpu7  | gemm 10+14 ^1
        0-2 gpu20 | allreduce@dp#1 36+230 ^2
        3 main  | aten::mm 0+10 | launch 2+3 ^1 | synchronize 12+213 :sync | c10d::allreduce_ 230+10 | launch 232+3 ^2
        3 gpu7  | gemm 10+214 ^1
        3 gpu20 | allreduce@dp#1 236+30 ^2
        """,
    )
    assert causes(result) == [(3, "gemm", "compute", False, 600)]


def test_an_operator_that_waits_for_a_collective_on_a_thread_is_its_victim(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        """
        0-2 main | aten::mm 0+10 | wait_tensor 20+1000 :sync | aten::add 1020+10
        0-2 th2  | gloo:all_reduce@dp#1 15+1000
        3 main   | aten::mm 0+710 | wait_tensor 720+300 :sync | aten::add 1020+10
        3 th2    | gloo:all_reduce@dp#1 715+300
        """,
    )
    assert causes(result) == [(3, "aten::mm", "compute", False, 2100)]


def test_who_waits_in_an_operator_answers_for_nothing_that_it_waited_for(tmp_path: Path) -> None:
    """Rank 2 is late for its second collective since rank 3 was for their first."""
    first, late = "aten::mm 0+100 | wait_tensor 110+20 :sync", "aten::mm 0+800 | wait_tensor 810+20 :sync"
    waits = "aten::mm 0+100 | wait_tensor 110+720 :sync"
    on_time, held_up = "wait_tensor 165+735 :sync | aten::add 900+10", "wait_tensor 865+35 :sync | aten::add 900+10"
    result = blamed(
        tmp_path,
        *(f"{rank} main | {first} | aten::mul 130+20 | {on_time}" for rank in (0, 1)),
        *(f"{rank} th2 | gloo:all_reduce@tp0 105+25 | gloo:all_reduce@dp{rank} 155+745" for rank in (0, 1)),
        f"2 main | {waits} | aten::mul 830+20 | {held_up}",
        "2 th2 | gloo:all_reduce@tp1 105+725 | gloo:all_reduce@dp0 855+45",
        f"3 main | {late} | aten::mul 830+20 | {held_up}",
        "3 th2 | gloo:all_reduce@tp1 805+25 | gloo:all_reduce@dp1 855+45",
    )
    assert (3, "aten::mm") in {(cause[0], cause[1]) for cause in causes(result)}
    assert all(cause[1] != "wait_tensor" for cause in causes(result))


def test_polling_more_often_than_the_others_is_not_taken_for_being_on_time(tmp_path: Path) -> None:
    # The allocator asks after events as often as it likes: a rank's third query is not its peers' third.
    result = blamed(
        tmp_path,
        """
        0-1 main  | query 1+1 | query 3+1 | query 5+1 | aten::mm 12+10 | aten::view 24+5 | launch 31+3 ^2 | query 50+1
        2   main  | query 1+1 | query 3+1 | query 5+1 | aten::mm 12+10 | aten::view 24+5 | launch 31+3 ^2 | query 228+1
        0-2 gpu20 | allreduce@dp#1 36+230 ^2
        3   main  | query 1+1 | aten::mm 12+210 | query 223+1 | query 225+1 | query 227+1 | aten::view 228+2
        3   main  | launch 231+3 ^2 | query 240+1
        3   gpu20 | allreduce@dp#1 236+30 ^2
        """,
    )
    assert causes(result) == [(3, "aten::mm", "host", False, 600)]


def test_the_walk_crosses_to_the_rank_that_made_the_last_one_late(tmp_path: Path) -> None:
    # Three replicas (dp) of two ranks (tp). Rank 3's kernel is slow, so rank 2 leaves their tp collective late, and
    # is the last to its dp collective although it did nothing wrong.
    fast = "gemm 10+100 | allreduce@tp{} 110+20 | gemm 130+20 | allreduce@dp{} 150+230"
    result = blamed(
        tmp_path,
        f"0 gpu7 | {fast.format(0, 0)}",
        f"1 gpu7 | {fast.format(0, 1)}",
        "2 gpu7 | gemm 10+100 | allreduce@tp1 110+220 | gemm 330+20 | allreduce@dp0 350+30",
        "3 gpu7 | gemm 10+300 | allreduce@tp1 310+20 | gemm 330+20 | allreduce@dp1 350+30",
        f"4 gpu7 | {fast.format(2, 0)}",
        f"5 gpu7 | {fast.format(2, 1)}",
    )
    assert causes(result) == [(3, "gemm", "compute", False, 200 + 2 * 200 + 2 * 200)]
    assert result.root_causes[0].synchronisations == 3
    (crossing,) = (path for path in result.paths if path.chain[0].rank == 2)
    assert stops(crossing.chain) == [(2, "allreduce", "victim"), (3, "allreduce", "victim"), (3, "gemm", "culprit")]


def test_a_collective_that_was_itself_slow_is_communication(tmp_path: Path) -> None:
    # As above, but the tp collective took 220 µs between two ranks that were there on time.
    fast = "gemm 10+100 | allreduce@tp{} 110+20 | gemm 130+20 | allreduce@dp{} 150+230"
    result = blamed(
        tmp_path,
        f"0 gpu7 | {fast.format(0, 0)}",
        f"1 gpu7 | {fast.format(0, 1)}",
        "2 gpu7 | gemm 10+100 | allreduce@tp1 110+220 | gemm 330+20 | allreduce@dp0 350+30",
        "3 gpu7 | gemm 10+100 | allreduce@tp1 110+220 | gemm 330+20 | allreduce@dp1 350+30",
        f"4 gpu7 | {fast.format(2, 0)}",
        f"5 gpu7 | {fast.format(2, 1)}",
    )
    assert {cause[2:4] for cause in causes(result)} == {("communication", True)}
    assert {cause[0] for cause in causes(result)} <= {2, 3}
    assert result.attributed_us == 800


ON_A_CPU = """
step 0: 0+100000
0-2 main | next 0+5000 :input /input | forward 6000+20000 | hook 26000+1000 | step 60000+5000
0-2 th2  | allreduce@dp 26500+33000
"""


def test_a_slow_input_is_the_cause(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        ON_A_CPU,
        "3 main | next 0+25000 :input /input | forward 26000+20000 | hook 46000+1000 | step 60000+5000",
        "3 th2  | allreduce@dp 46500+13000",
    )
    assert causes(result) == [(3, "next", "input", False, 60_000)]


def test_a_slow_operator_on_a_cpu_is_the_cause(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        ON_A_CPU,
        "3 main | next 0+5000 :input /input | forward 6000+40000 | hook 46000+1000 | step 60000+5000",
        "3 th2  | allreduce@dp 46500+13000",
    )
    assert causes(result) == [(3, "forward", "compute", False, 60_000)]


def test_a_pause_on_a_cpu_is_an_edge(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        ON_A_CPU,
        "3 main | next 0+5000 :input /input | forward 26000+20000 | hook 46000+1000 | step 60000+5000",
        "3 th2  | allreduce@dp 46500+13000",
    )
    assert causes(result) == [(3, "forward", "host", True, 60_000)]


def test_on_a_cpu_too_the_walk_crosses_to_the_rank_that_was_waited_for(tmp_path: Path) -> None:
    # Three replicas of two ranks. Rank 2's thread waits for rank 3, and so comes late to its dp collective.
    fast = (
        "{0} main | forward 0+10000 | backward 16000+5000\n{0} th2 | allreduce@tp{1} 10000+6000 | allreduce@dp{2} {3}"
    )
    result = blamed(
        tmp_path,
        "step 1: 0+90000",
        *(fast.format(rank, rank // 2, rank % 2, "21000+26000") for rank in (0, 1, 4, 5)),
        "2 main | forward 0+10000 | backward 36000+5000",
        "2 th2  | allreduce@tp1 10000+26000 | allreduce@dp0 41000+6000",
        "3 main | forward 0+30000 | backward 36000+5000",
        "3 th2  | allreduce@tp1 30000+6000 | allreduce@dp1 41000+6000",
    )
    assert causes(result) == [(3, "forward", "compute", False, 20_000 + 4 * 20_000)]


def test_the_culprit_can_change_within_a_step(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        """
        0,3 gpu7 | gemm 0+100 | allreduce@dp#1 100+150 | relu 250+50 | allreduce@dp#2 300+80
        1   gpu7 | gemm 0+220 | allreduce@dp#1 220+30  | relu 250+50 | allreduce@dp#2 300+80
        2   gpu7 | gemm 0+100 | allreduce@dp#1 100+150 | relu 250+110 | allreduce@dp#2 360+20
        """,
    )
    assert causes(result) == [(1, "gemm", "compute", False, 360), (2, "relu", "compute", False, 180)]
    assert [cause.share for cause in result.root_causes] == pytest.approx([2 / 3, 1 / 3])
    assert [(r.rank, r.blamed_us, r.arrived_last) for r in result.by_rank] == [(1, 360, 1), (2, 180, 1)]
    assert [path.waited_us for path in result.paths] == [360, 180]


def test_two_reasons_for_one_delay_share_its_waiting(tmp_path: Path) -> None:
    result = blamed(
        tmp_path,
        "0-2 gpu7 | gemm 0+100 | relu 100+50 | allreduce@dp#1 150+250",
        "3   gpu7 | gemm 0+150 | relu 150+200 | allreduce@dp#1 350+50",
    )
    assert causes(result) == [(3, "relu", "compute", False, 450), (3, "gemm", "compute", False, 150)]


def test_time_that_was_made_up_again_is_nobodys(tmp_path: Path) -> None:
    # Rank 3 lost 100 µs in gemm, made up for them in relu, and lost 50 in add.
    result = blamed(
        tmp_path,
        "0-2 gpu7 | gemm 0+100 | relu 100+150 | add 250+50 | allreduce@dp#1 300+100",
        "3   gpu7 | gemm 0+200 | relu 200+50 | add 250+100 | allreduce@dp#1 350+50",
    )
    assert causes(result) == [(3, "add", "compute", False, 150)]


def test_a_rank_that_was_late_when_the_step_began_is_said_to_be_so(tmp_path: Path) -> None:
    result = blamed(
        tmp_path, "0-2 gpu7 | gemm 0+100 | allreduce@dp#1 100+250\n3 gpu7 | gemm 200+100 | allreduce@dp#1 300+50"
    )
    assert causes(result) == [(3, "step begin", "unknown", True, 600)]


def test_steps_add_up(tmp_path: Path) -> None:
    table = """
    step {}: {}+1000
    0-2 gpu7 | gemm {}+100 | allreduce@dp#{} {}+250
    3   gpu7 | gemm {}+300 | allreduce@dp#{} {}+50
    """
    made = trace(tmp_path, "".join(table.format(s, b, b, s, b + 100, b, s, b + 300) for s, b in ((4, 0), (5, 2000))))
    result = blame(made)
    assert causes(result) == [(3, "gemm", "compute", False, 1200)]
    assert (result.step, result.steps, result.root_causes[0].steps) == (None, (4, 5), (4, 5))
    assert blame(made.select([5])).step == 5


def test_a_clock_that_is_ahead_changes_nothing(tmp_path: Path) -> None:
    tables = (
        HEALTHY,
        "3 main  | aten::mm 0+10 | launch 2+3 ^1 | aten::view 12+205 | c10d::allreduce_ 220+10 | launch 222+3 ^2",
        LATE_LAUNCH,
    )
    for rank in (0, 3):
        assert blamed(tmp_path / str(rank), *tables, shift={rank: 5000}) == blamed(tmp_path / "as it is", *tables)


def test_one_rank_and_one_operator_can_be_asked_for(tmp_path: Path) -> None:
    made = trace(
        tmp_path,
        """
        step 0: 0+1000
        0,3 gpu7 | gemm 0+100 | allreduce@dp#1 100+150 | relu 250+50 | allreduce@dp#2 300+80
        1   gpu7 | gemm 0+220 | allreduce@dp#1 220+30  | relu 250+50 | allreduce@dp#2 300+80
        2   gpu7 | gemm 0+100 | allreduce@dp#1 100+150 | relu 250+110 | allreduce@dp#2 360+20
        """,
    )
    assert causes(blame(made, rank=2)) == [(2, "relu", "compute", False, 180)]
    assert causes(blame(made, operator="gem")) == [(1, "gemm", "compute", False, 360)]
    assert len(blame(made, rank=2).paths) == 1
    assert blame(made, rank=2).waiting_us == 540
    with pytest.raises(UsageError, match="rank 7 left no trace"):
        blame(made, rank=7)


def test_without_collectives_there_is_nothing_to_blame(tmp_path: Path) -> None:
    result = blamed(tmp_path, "0-3 gpu7 | gemm 0+100")
    assert (result.root_causes, result.paths, result.waiting_us) == ((), (), 0)
    assert [warning.code for warning in result.warnings] == ["no_collectives"]


def test_collectives_that_do_not_fit_are_said(tmp_path: Path) -> None:
    result = blamed(tmp_path, "0-2 gpu7 | allreduce@dp#1 0+10 | allreduce@dp#2 20+10\n3 gpu7 | allreduce@dp#1 0+10")
    assert [warning.code for warning in result.warnings] == ["unmatched_collectives"]
    assert "1 of 2" in result.warnings[0].message


LATE_STAGE = """
step 0: 0+1000
0 gpu7 | gemm 0+300 | give@p0#1 300+20 :send
1 gpu7 | gemm 0+380 | give@p1#1 380+20 :send
4 gpu7 | gemm 0+300 | give@p4#1 300+20 :send
2 gpu7 | take@p0#1 0+320 :recv | gemm 320+300
3 gpu7 | take@p1#1 0+400 :recv | gemm 400+300
5 gpu7 | take@p4#1 0+320 :recv | gemm 320+300
"""
STAGES = Layout(pp=2, pipeline_stage={0: 0, 1: 0, 4: 0, 2: 1, 3: 1, 5: 1})


def test_what_a_stage_waits_for_another_that_is_on_time_is_bubble_and_nobodys(tmp_path: Path) -> None:
    result = blame(trace(tmp_path, LATE_STAGE, layout=STAGES))
    # Each of the second stage waits 300 µs for the first one's kernel; one of them 80 µs longer, as that was late.
    assert result.waiting_us == pytest.approx(980, abs=1)
    assert result.bubble_us == pytest.approx(900, abs=1)
    assert causes(result) == [(1, "gemm", "compute", False, 80.0)]
    assert [row.rank for row in result.by_rank] == [1]
    assert sum(row.waited_us for row in result.waiting) == pytest.approx(80, abs=1)
    told = blame_totals(result)
    assert "pipeline bubble 900 µs, uneven stages included (no root cause)" in told


def test_where_a_stage_has_one_rank_nobody_can_tell_bubble_from_lateness(tmp_path: Path) -> None:
    table = """
    step 0: 0+1000
    0 gpu7 | gemm 0+300 | give@p0#1 300+20 :send
    2 gpu7 | take@p0#1 0+320 :recv | gemm 320+300
    """
    result = blame(trace(tmp_path, table, layout=Layout(pp=2, pipeline_stage={0: 0, 2: 1})))
    assert result.waiting_us == pytest.approx(300, abs=1)
    assert result.bubble_us == 0
    assert [row.rank for row in result.by_rank] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["two_hosts_slow_input", "pipeline_slow_operator"])
def test_a_path_that_joins_a_known_one_is_the_one_that_it_would_be_by_itself(
    sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = []

    def both(graph: ExecutionGraph, late: Lateness, row: int, noise_ns: float, walks: Mapping[int, Walk]) -> Walk:
        found, alone = walk_back(graph, late, row, noise_ns, walks), walk_back(graph, late, row, noise_ns)
        assert found.path == alone.path
        assert [one._replace(late_ns=0.0) for one in found.in_order] == [
            one._replace(late_ns=0.0) for one in alone.in_order
        ]
        assert [one.late_ns for one in found.in_order] == pytest.approx([one.late_ns for one in alone.in_order])
        joined.extend(one for one in found.path[1:] if one in walks)
        return found

    monkeypatch.setattr(analysis, "walk_back", both)
    assert kair.open(SAMPLES / sample, progress=False).blame().waiting_us > 0
    assert joined
