"""The corpus of real takes: drawn by seed, told by what was measured, and scored by hand-made takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from damaged import cut
from drawing import ALL_RANKS, CHORES, OF_NETWORKS, ONE_RANK, draw, draw_chores, draw_network, draw_own_cores, draw_pair
from kept_answers import read_answers, write_answers
from network_report import Pair as PairOfNetworks
from network_report import table
from on_gpu.gpu_drawing import ALL_RANKS_ON_GPU, ONE_RANK_ON_GPU, GpuTake, draw_gpu, draw_gpu_pair
from on_gpu.net_waits import net_of_stops
from pair_report import Pair, by_kind, summary
from price_report import page as page_of_prices
from take_report import page
from take_scoring import RIGHT_CAUSES, SHARED, score


def test_half_of_all_takes_are_healthy_and_the_same_seed_draws_the_same() -> None:
    takes = [draw(seed) for seed in range(300)]
    assert takes == [draw(seed) for seed in range(300)]
    healthy = sum(not take.faults for take in takes)
    assert 0.4 < healthy / len(takes) < 0.6
    assert {take.parallel for take in takes} == {"ddp", "fsdp2", "pipeline", "two_groups"}
    assert all(2 <= take.ranks <= 8 and 3 <= take.steps <= 40 for take in takes)


@pytest.mark.slow
def test_takes_on_a_gpu_are_drawn_by_seeds_of_their_own() -> None:
    takes = [draw_gpu(seed) for seed in range(300)]
    assert takes == [draw_gpu(seed) for seed in range(300)]
    assert 0.4 < sum(not take.faults for take in takes) / len(takes) < 0.6
    assert {fault.kind for take in takes for fault in take.faults} == ONE_RANK_ON_GPU.keys() | ALL_RANKS_ON_GPU.keys()
    assert ONE_RANK_ON_GPU.keys() <= RIGHT_CAUSES.keys() and ALL_RANKS_ON_GPU.keys() <= SHARED.keys()
    assert all(2 <= take.ranks <= 8 and take.device == "cuda" for take in takes)
    assert all(GpuTake.of(take.told()) == take for take in takes)
    assert {fault.kind for seed in range(5) for fault in draw_gpu_pair(seed).faults} <= ALL_RANKS_ON_GPU.keys()


def test_pairs_of_takes_have_cores_of_their_own() -> None:
    takes = [draw_pair(seed) for seed in range(12)]
    assert takes == [draw_pair(seed) for seed in range(12)]
    assert {take.faults[0].kind for take in takes} == ALL_RANKS.keys() <= SHARED.keys()
    assert {(take.ranks, take.cores_of(0) == {0}, take.cores_of(1) == {1}, take.load) for take in takes} == {
        (2, True, True, "none")
    }


@pytest.mark.slow
def test_takes_of_own_cores_have_nothing_beside_them() -> None:
    takes = [draw_own_cores(seed) for seed in range(200)]
    assert takes == [draw_own_cores(seed) for seed in range(200)]
    assert all(take.cores_of(0) != take.cores_of(1) and take.load == "none" and not take.workers for take in takes)
    faulty = [take.faults for take in takes if take.faults]
    assert 80 <= len(faulty) <= 120
    assert all(len(fault.ranks) == 1 for (fault,) in faulty)
    assert {fault.ranks for (fault,) in faulty} == {(0,), (1,)}
    # Each kind is drawn that shows without a load and has an end that is its own.
    assert {fault.kind for (fault,) in faulty} == set(ONE_RANK) - {"nice", "slow_link"}


def test_takes_of_networks_have_several_hosts() -> None:
    takes = [draw_network(seed) for seed in range(100)]
    assert takes == [draw_network(seed) for seed in range(100)]
    assert {take.hosts for take in takes} == {2, 3, 4}
    assert all(take.ranks % take.hosts == 0 and take.ranks <= 8 and take.steps >= 8 for take in takes)
    assert {(fault.kind, len(fault.ranks) == take.ranks) for take in takes for fault in take.faults} == {
        (OF_NETWORKS[0], False),
        (OF_NETWORKS[1], True),
    }
    assert {take.parallel for take in takes if take.ranks == 2} == {"ddp", "fsdp2"}


def test_the_seeds_of_takes_on_cores_draw_what_they_drew() -> None:
    drawn = draw(40)
    assert (drawn.parallel, drawn.model, drawn.ranks, drawn.steps, drawn.examples) == ("fsdp2", "attention", 4, 35, 24)
    assert [(fault.kind, fault.ranks, fault.severity) for fault in drawn.faults] == [("nice", (2,), 0.0358)]


def test_a_rank_on_a_gpu_does_not_wait_while_it_is_stopped() -> None:
    assert net_of_stops([[100, 200], [300, 350]], [[150, 170], [320, 400]]) == 80 + 20


def take(own_ms: list[list[float]], faults: list[dict[str, Any]], load: str = "none") -> dict[str, Any]:
    """A take.json whose ranks took so many ms for themselves in each step (steps × ranks); a step is as long."""
    ranks = len(own_ms[0])
    steps = [
        [
            {
                "begin_ns": 0,
                "end_ns": int(max(of_step) * 1e6),
                "run_ns": int(of_step[rank] * 1e6),
                "delay_ns": 0,
                "injected_wall_ns": 0,
                "injected_run_ns": 0,
                "injected_delay_ns": 0,
            }
            for of_step in own_ms
        ]
        for rank in range(ranks)
    ]
    drawn = {
        "seed": 1,
        "ranks": ranks,
        "steps": len(own_ms),
        "load": load,
        "parallel": "ddp",
        "pinning": "none",
        "host_of_rank": [0] * ranks,
        "faults": faults,
    }
    return {"take": drawn, "stops": [], "outside": {}, "ranks": [{"steps": of_rank} for of_rank in steps]}


def test_on_a_gpu_the_severity_is_what_was_not_waited() -> None:
    document = take([[120.0] * 4] * 8, [SLEEP])
    for rank, measured in enumerate(document["ranks"]):
        for step in measured["steps"]:
            step["waited_ns"] = int(1e6 * (0 if rank == 1 else 30))
    assert score(document, said(("host", [1]))).severity == pytest.approx(30 / 120)


@pytest.mark.parametrize(("cause", "named"), [("input_bound", True), ("contention", False)])
def test_slow_input_of_all_ranks_is_named_by_its_own_cause(cause: str, named: bool) -> None:
    fault = {"kind": "slow_input_on_all", "ranks": [0, 1, 2, 3], "onset": 0}
    scored = score(take([[100.0] * 4] * 8, [fault]), said((cause, []), verdict="job_wide"))
    assert (scored.kind, scored.said_shared) == ("shared", named)


def said(*findings: tuple[str, list[int]], verdict: str = "straggler") -> dict[str, Any]:
    rows = [{"cause": cause, "ranks": ranks, "time_lost_us_per_step": 1000.0} for cause, ranks in findings]
    return {"verdict": verdict, "findings": rows}


SLEEP = {"kind": "sleep", "ranks": [1], "onset": 0}
SLOW = [[100.0, 120.0, 100.0, 100.0]] * 8


def test_the_severity_is_what_was_measured() -> None:
    scored = score(take(SLOW, [SLEEP]), said(("host", [1])))
    assert scored.severity == pytest.approx(20 / 120)
    assert (scored.right_rank, scored.right_cause, scored.innocents) == (True, True, ())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (said(("compute", [1])), (True, False, ())),
        (said(("host", [2])), (False, False, (2,))),
        (said(("contention", []), verdict="job_wide"), (False, False, ())),
    ],
)
def test_wrong_answers_are_told_apart(answer: dict[str, Any], expected: tuple[bool, bool, tuple[int, ...]]) -> None:
    scored = score(take(SLOW, [SLEEP]), answer)
    assert (scored.right_rank, scored.right_cause, scored.innocents) == expected


def test_who_leads_the_ranking_is_told_beside_who_is_accused() -> None:
    takes = [score(take(SLOW, [SLEEP]), said(verdict="inconclusive") | {"first": first}) for first in (1, 2)]
    rows = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in page(takes).splitlines()[2:]}
    assert rows["fault of ≥ 10 % of the step, ≥ 8 steps: right rank"].startswith("0 of 2:")
    assert rows["fault of ≥ 10 % of the step, ≥ 8 steps: it leads the ranking"].startswith("1 of 2:")


@pytest.mark.parametrize(
    ("pinning", "guilty", "more"), [("none", 0, 30), ("round_robin", 0, 10), ("round_robin", 1, -45)]
)
def test_what_a_shared_core_costs_is_no_part_of_a_fault(pinning: str, guilty: int, more: float) -> None:
    """Of three ranks on two cores 0 and 2 share one. Rank 1 has nobody like it."""
    document = take([[110.0, 60.0, 100.0]] * 8, [{**SLEEP, "ranks": [guilty]}])
    document["take"]["pinning"] = pinning
    assert score(document, said()).severity == pytest.approx(more / 110)


@pytest.mark.parametrize(("wall_ms", "kind"), [(0.5, "healthy"), (40.0, "fault")])
def test_a_loop_in_which_rank_0_logs_is_healthy_where_that_costs_next_to_nothing(wall_ms: float, kind: str) -> None:
    document = take([[100.0] * 4] * 10, [{"kind": "logging", "ranks": [0], "onset": 0}])
    for number in (4, 9):
        document["ranks"][0]["steps"][number]["injected_wall_ns"] = wall_ms * 1e6
    scored = score(document, said())
    assert (scored.kind, scored.hit) == (kind, 2 * (wall_ms > 1))


def test_takes_with_chores_differ_from_others_in_what_rank_0_does_at_a_step_s_end() -> None:
    takes = [draw_chores(seed) for seed in range(60)]
    assert takes == [draw_chores(seed) for seed in range(60)]
    assert {fault.kind for take in takes for fault in take.faults} == {*CHORES} <= RIGHT_CAUSES.keys()
    assert {(fault.ranks, fault.place) for take in takes for fault in take.faults} == {((0,), "end"), ((0,), "end_met")}
    assert {round(1 / take.faults[0].share_of_steps) for take in takes} == {1, 2, 5, 10}


def test_cleared_are_jobs_without_a_straggler_and_those_that_truly_lack_cores() -> None:
    lacking = take([[100.0] * 4] * 10, [])
    for rank in lacking["ranks"]:
        for step in rank["steps"]:
            step["delay_ns"] = 20e6
    answers = [said(verdict="no_straggler"), said(("contention", []), verdict="job_wide"), said(verdict="inconclusive")]
    assert [score(lacking, one).is_cleared for one in answers] == [True, True, False]
    assert [score(take([[100.0] * 4] * 10, []), one).is_cleared for one in answers] == [True, False, False]


def test_a_rank_that_is_measurably_slower_is_no_innocent_and_accused_all_the_same() -> None:
    scored = score(take(SLOW, [], load="steady"), said(("contention", [1])))
    assert scored.kind == "healthy" and scored.accused == (1,) and scored.innocents == ()


def test_the_table_counts_healthy_takes_in_which_a_rank_is_accused() -> None:
    takes = [
        score(take([[100.0] * 4] * 8, []), said(verdict="no_straggler")),
        score(take([[100.0] * 4] * 8, []), said(("host", [0]))),
        score(take(SLOW, [SLEEP]), said(("host", [1]))),
    ]
    rows = page(takes).splitlines()
    assert any(row.startswith("| healthy, no load: a rank accused") and "1 of 2: 50.0 %" in row for row in rows)
    assert any("≥ 10 % of the step, ≥ 8 steps: rank and cause" in row and "1 of 1: 100.0 %" in row for row in rows)


def test_a_slow_link_is_its_host_s_and_counts_by_what_it_needs() -> None:
    """1.5 MB a step at 1 Gb/s are 12 ms of 100."""
    document = take([[100.0] * 4] * 8, [{"kind": "slow_link", "ranks": [1], "onset": 0}])
    document["take"]["host_of_rank"] = [0, 1, 1, 0]
    document["outside"] = {"link0": {"bits_per_s": 1_000_000_000, "sent_bytes": 1_500_000.0}}
    right, other = (score(document, said((cause, [2]))) for cause in ("communication", "host"))
    assert right.delivering == pytest.approx(0.12)
    assert (right.right_link, right.right_rank, right.right_cause) == (True, True, True)
    assert (other.right_link, other.right_rank, other.right_cause) == (False, True, False)
    rows = page([right, other]).splitlines()
    assert any(row.startswith("| slow link") and "1 of 2: 50.0 %" in row for row in rows)


def test_a_slow_link_makes_no_rank_s_own_time_longer() -> None:
    """Rank 1 of its host took 40 of 140 ms longer, for want of a core, say; rank 3 has a fault that takes 20."""
    link, work = {"kind": "slow_link", "ranks": [1], "onset": 0}, {"kind": "extra_work", "ranks": [3], "onset": 0}
    alone, beside = (take([[100.0, 140.0, 100.0, 120.0]] * 8, faults) for faults in ([link], [link, work]))
    for document in (alone, beside):
        document["take"]["host_of_rank"], document["outside"] = [0, 1, 1, 0], {}
    of_link, of_both = score(alone, said()), score(beside, said(("uneven_work", [3])))
    assert (of_link.kind, of_link.severity) == ("link", 0)
    assert (of_both.kind, of_both.right_rank, of_both.right_cause) == ("two", True, True)
    assert of_both.severity == pytest.approx(20 / 140)
    rows = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in page([of_link, of_both]).splitlines()[2:]}
    assert rows["faulty: an innocent accused"].startswith("0 of 2:")
    assert rows["fault of ≥ 10 % of the step, ≥ 8 steps: right rank"].startswith("1 of 1:")
    assert rows["smaller fault: right rank"] == "–"


def test_pairs_are_counted_by_what_they_were_priced_at() -> None:
    """A step of 100 ms takes 150 with the fault: 60 ms are within a quarter of that, 80 are not."""
    quota = {"kind": "quota_on_all", "ranks": [0, 1, 2, 3], "onset": 0}
    without, beside = take([[100.0] * 4] * 8, []), take([[150.0] * 4] * 8, [quota])
    between = {"price_range": {"least_us": 40e3, "most_us": 90e3}}

    def priced(cost_ms: float) -> dict[str, Any]:
        answer = said(("contention", []), verdict="job_wide")
        answer["findings"][0] |= {"time_lost_us_per_step": cost_ms * 1e3, "figures": between}
        return answer

    answers = [priced(60), priced(80), said(("contention", [2]))]
    pairs = [Pair.of(beside, answer, without, said(("host", [0]))) for answer in answers]
    assert [pair.is_near for pair in pairs] == [True, False, False]
    assert summary(pairs) == (
        "Told in 2 of 3, priced within a quarter of the difference in 1; the range holds it in 2. A rank is accused in "
        "3 jobs without the fault, and in 1 with it."
    )
    # A second recording without the fault that differs by 10 ms leaves 45 ms; one that differs by 20 leaves 40 unknown.
    steady, unsteady = (
        [Pair.of(beside, answer, without, said(), take([[step] * 4] * 8, [])) for answer in answers]
        for step in (110.0, 120.0)
    )
    assert [pair.is_near for pair in steady] == [False, False, False]
    assert [pair.is_known for pair in [*steady, *unsteady]] == [True] * 3 + [False] * 3
    assert "The difference is known in 3, of which priced within" in summary([*steady, *unsteady])
    assert by_kind([*pairs, *steady, *unsteady])[1] == (
        "quota on all",
        "9",
        "6",
        "6",
        "1 of 6",
        "4 of 6",
        "1.47 (1.20 – 1.78)",
    )


def of_network(kind: str, ranks: list[int], answer: dict[str, Any], cost_ms: float) -> PairOfNetworks:
    """Two hosts of two ranks: 15 MB a step at 1 Gb/s are 120 ms of 150, in place of 100."""
    without, beside = (take([[step] * 4] * 8, []) for step in (100.0, 150.0))
    for document in (without, beside):
        document["take"]["host_of_rank"] = [0, 0, 1, 1]
    beside["take"]["faults"] = [{"kind": kind, "ranks": ranks, "onset": 0}]
    beside["outside"] = {"link0": {"bits_per_s": 1_000_000_000, "sent_bytes": 15_000_000.0}}
    for one in answer["findings"]:
        one |= {"time_lost_us_per_step": cost_ms * 1e3, "figures": {"network": {}}}
    return PairOfNetworks.of(beside, answer, without, said())


def test_slow_links_of_all_hosts_are_nobody_s() -> None:
    told, of_all = said(("exposed_communication", []), verdict="job_wide"), [0, 1, 2, 3]
    pairs = [
        of_network("slow_links", of_all, told, 60),
        of_network("slow_links", of_all, said(("communication", [2, 3])), 60),
        of_network("slow_link", [3], said(("communication", [2, 3])), 80),
        of_network("slow_link", [3], said(("communication", [0, 1])), 60),
    ]
    assert [(one.is_named, one.accuses_innocent, one.is_near) for one in pairs] == [
        (True, False, True),
        (False, True, True),
        (True, False, False),
        (False, True, True),
    ]
    shares = [share.split(":")[0] for _, share, _ in table(pairs)]
    assert shares[1:] == ["0 of 4", "2 of 4", "1 of 2", "1 of 2", "1 of 2", "1 of 2", "1 of 2"]


def test_what_the_job_without_the_fault_lacked_counts_beside_the_difference() -> None:
    """Its step of 100 ms would take 70 with cores enough: 150 with the fault are 80 more."""
    quota = {"kind": "quota_on_all", "ranks": [0, 1, 2, 3], "onset": 0}
    without, beside = take([[100.0] * 4] * 8, []), take([[150.0] * 4] * 8, [quota])
    for rank in without["ranks"]:
        for step in rank["steps"]:
            step |= {"run_ns": step["run_ns"] - 30_000_000, "delay_ns": 30_000_000}
    answer = said(("contention", []), verdict="job_wide")
    for cost_ms, near in ((80, True), (50, True), (35, False), (110, False)):
        answer["findings"][0] |= {"time_lost_us_per_step": cost_ms * 1e3, "figures": {}}
        assert Pair.of(beside, answer, without, said()).is_near is near


@pytest.mark.parametrize(("third", "left"), [(0, ["b", "c"]), (1, ["a", "c"]), (2, ["a", "b"])])
def test_a_third_of_each_step_is_cut_from_a_trace(third: int, left: list[str]) -> None:
    def event(name: str, begin: float, took: float) -> dict[str, object]:
        return {"ph": "X", "name": name, "ts": begin, "dur": took}

    named = {"ph": "M", "name": "process_name"}
    step, *inside = event("ProfilerStep#4", 0, 90), event("a", 0, 20), event("b", 30, 20), event("c", 60, 30)
    content = {"traceEvents": [named, step, *inside, event("after", 95, 5)]}
    cut(content, third)
    assert [one["name"] for one in content["traceEvents"]] == ["process_name", "ProfilerStep#4", *left, "after"]


def test_answers_are_kept_by_seed_what_was_measured_to_ten_microseconds(tmp_path: Path) -> None:
    def one(seed: int, own_ns: int, verdict: str) -> dict[str, Any]:
        measured = {"take": {"seed": seed}, "ranks": [{"steps": [{"run_ns": own_ns, "voluntary": 1234}]}]}
        return {"document": measured, "answer": {"verdict": verdict}}

    kept = tmp_path / "answers.json.xz"
    write_answers(kept, [one(7, 60_014_999, "straggler"), one(3, 4_000, "job_wide")], merge=False)
    write_answers(kept, [one(5, 15_000, "job_wide"), one(7, 60_015_001, "no_straggler")], merge=True)
    assert read_answers(kept) == [
        one(3, 0, "job_wide"),
        one(5, 20_000, "job_wide"),
        one(7, 60_020_000, "no_straggler"),
    ]


def test_kept_moments_are_since_the_first_step(tmp_path: Path) -> None:
    """Steps and stops are of one clock: what falls into what stays as it was, however often answers are written."""
    begun, slow, stop = 1_795_713_596_192_325_941, [[100.0, 120.0, 100.0, 100.0]] * 2, [[50_000_000, 70_000_000]]
    document = take(slow, [{**SLEEP, "kind": "sigstop"}])
    document["stops"] = [{"fault": 0, "ranks": [1], "spells": stop}]
    now = json.loads(json.dumps(document))
    for step in (step for rank in now["ranks"] for step in rank["steps"]):
        step |= {name: step[name] + begun for name in ("begin_ns", "end_ns")}
    now["stops"][0]["spells"] = [[moment + begun for moment in spell] for spell in stop]
    kept = tmp_path / "answers.json.xz"
    for _ in range(2):
        write_answers(kept, [{"document": now, "answer": said()}], merge=False)
        (again,) = read_answers(kept)
        assert again["document"] == document
        assert score(again["document"], said()).severity == score(now, said()).severity > 0
        now = again["document"]


def test_prices_of_culprits_are_held_against_the_steps_without_them() -> None:
    """Steps of 100 ms are 110 where they are recorded; with rank 1 taking 60 ms longer they are 170."""
    sleep = {"kind": "sleep", "ranks": [1], "severity": 0.5, "onset": 0, "place": "input"}

    def one(priced_ms: float, faults: list[dict[str, Any]], ranks: list[int]) -> dict[str, Any]:
        slow = 60 if faults else 0
        document = take([[50.0, 50.0 + slow]] * 10, faults)
        for rank in document["ranks"]:
            rank["reference"] = {"step_ns": 100e6}
            for at, step in enumerate(rank["steps"]):
                step["begin_ns"], step["end_ns"] = int(at * 1e9), int(at * 1e9 + (110 + slow) * 1e6)
        finding = {"ranks": ranks, "cause": "host", "time_lost_us_per_step": priced_ms * 1e3}
        return {"document": document, "answer": {"verdict": "straggler", "findings": [finding] if ranks else []}}

    healthy = [one(0, [], []) for _ in range(3)]
    # The last one names another rank: it has no price.
    text = page_of_prices([*healthy, *(one(priced, [sleep], [1]) for priced in (60, 54, 30)), one(60, [sleep], [0])])
    assert text.startswith("3 culprits. Of 3 healthy takes four of five took +0 % to +0 % longer")
    (row,) = [line for line in text.splitlines() if line.startswith("| all ")]
    assert [cell.strip() for cell in row.split("|")[2:6]] == ["3", "0.90 (0.50–1.00)", "0.80", "2 of 3"]
