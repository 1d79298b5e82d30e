"""NCCL Inspector's logs alone: who is late, which communicator is slow, and what such logs cannot show."""

import json
from pathlib import Path
from random import Random

import pytest
from support.inspector_logs import MadeJob

from kair.app.question import Question
from kair.app.session import Session
from kair_engine.errors import InputError
from kair_engine.results.triage import TriageResult


def triage(folder: Path) -> TriageResult:
    found = Session.open(folder).ask(Question.of("triage")).result
    assert isinstance(found, TriageResult)
    return found


def line(rank: int, number: int, us: int, *, communicator: str = "0x1", of: int = 3, at_us: int = 0) -> str:
    """A line as the Inspector writes it; `at_us` is when."""
    return json.dumps(
        {
            "header": {"id": communicator, "comm_name": "unknown", "rank": rank, "n_ranks": of, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": 1_790_000_000_000_000 + at_us,
                "hostname": "node-1",
                "pid": 100 + rank,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": number,
                "coll_msg_size_bytes": 1 << 20,
                "coll_exec_time_us": us,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 1.0,
                "coll_busbw_gbs": 1.0,
            },
        }
    )


def test_by_hand(tmp_path: Path) -> None:
    """A step of 10 ms, one collective in each: rank 2 is in it for 1.0 ms, the others wait 1.5 and 1.6 ms longer."""
    for rank, took in enumerate((2_500, 2_600, 1_000)):
        lines = [line(rank, number, took + number % 7, at_us=10_000 * number) for number in range(80)]
        (tmp_path / f"node-1-pid{100 + rank}.log").write_text("\n".join(lines) + "\n")
    found = triage(tmp_path)
    (finding,) = found.findings
    assert (found.verdict, finding.ranks, finding.cause, finding.hosts) == ("straggler", (2,), "unknown", ("node-1",))
    assert found.step_time_us == pytest.approx(10_000, rel=0.01)
    assert found.waiting_us_per_step == pytest.approx(3_100, rel=0.01)
    assert finding.time_lost_us_per_step == pytest.approx(1_500, rel=0.04)
    came = next(one for one in finding.evidence if one.kind == "came_last")
    assert came.figures == {
        "arrived_last": 60,
        "collectives": 60,
        "waited_us": pytest.approx(60 * 3_100),
        "share_of_waiting": pytest.approx(1.0),
    }


@pytest.mark.slow
@pytest.mark.parametrize("dump_us", [100_000, None])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("overlaps", [False, True])
def test_the_late_rank_is_named_among_all_communicators(tmp_path: Path, dump_us: int, tp: int, overlaps: bool) -> None:
    job = MadeJob(dp=8, tp=tp, late={5: 1.1}, dump_us=dump_us, overlaps=overlaps, clock_us=70_000.0, seed=3)
    (finding,) = triage(job.write(tmp_path / "logs")).findings
    assert finding.ranks == (5,)
    assert finding.time_lost_us_per_step == pytest.approx(0.1 * 4 * 5_000, rel=0.25)
    assert finding.time_lost_us_per_step * (finding.slowdown / (finding.slowdown - 1)) == pytest.approx(
        job.step_us, rel=0.03
    )


def test_it_says_since_when(tmp_path: Path) -> None:
    (finding,) = triage(MadeJob(late={3: 1.15}, since=70).write(tmp_path / "logs")).findings
    assert finding.ranks == (3,)
    assert finding.since == pytest.approx(70, abs=2)


@pytest.mark.slow
def test_nobody_is_late_in_a_healthy_job(tmp_path: Path) -> None:
    found = triage(MadeJob(dp=4, tp=2, seed=5).write(tmp_path / "logs"))
    assert (found.verdict, found.findings, found.open) == ("no_straggler", (), ())
    assert found.unseen is not None


@pytest.mark.slow
def test_a_slow_communicator_is_named_and_nobody_is_late(tmp_path: Path) -> None:
    job = MadeJob(dp=8, tp=2, slow_group=5, slower=1.8, transfer_us=8_000.0)
    found = triage(job.write(tmp_path / "logs"))
    (finding,) = found.findings
    assert (found.verdict, finding.cause, finding.ranks) == ("straggler", "communication", (10, 11))
    assert finding.edge == "0x7a0005 (AllReduce)"
    assert {one.kind: one.shown_by for one in finding.evidence}["slow_link"] is None


def test_a_rank_whose_log_is_missing_leaves_the_verdict_open(tmp_path: Path) -> None:
    found = triage(MadeJob(late={3: 1.2}, transfer_us=4_000.0).write(tmp_path / "logs", without=(3,)))
    assert (found.verdict, found.findings) == ("inconclusive", ())
    (item,) = found.open
    assert (item.kind, item.ranks) == ("unrecorded", (3,))


@pytest.mark.slow
def test_without_a_communicator_of_all_ranks_are_numbered_by_host_and_process(tmp_path: Path) -> None:
    job = MadeJob(dp=8, tp=4, late={21: 1.15}, world=False, per_host=4)
    (finding,) = triage(job.write(tmp_path / "logs")).findings
    assert (finding.ranks, finding.hosts) == ((21,), ("node-5",))


@pytest.mark.slow
def test_a_step_whose_length_is_unknown_accuses_nobody_of_little(tmp_path: Path) -> None:
    found = triage(MadeJob(late={3: 1.1}, dump_us=0).write(tmp_path / "logs"))
    assert (found.verdict, found.findings) == ("inconclusive", ())
    assert [(one.kind, one.ranks) for one in found.open] == [("waiting", (3,))]


@pytest.mark.slow
def test_damaged_lines_cost_one_warning_and_no_verdict(tmp_path: Path) -> None:
    folder = MadeJob(late={3: 1.15}).write(tmp_path / "logs")
    for at, log in enumerate(sorted(folder.iterdir())):
        lines = log.read_text().splitlines()
        lines[7 * at + 9 :: 97] = ['{"header": {"id": 7}}'] * len(lines[7 * at + 9 :: 97])
        lines[3] = lines[3][: 40 + at]
        log.write_bytes("\n".join(lines)[:-90].encode() + b"\xff\xfe")
    (finding,) = triage(folder).findings
    assert finding.ranks == (3,)


@pytest.mark.slow
def test_two_runs_in_one_folder_are_not_one(tmp_path: Path) -> None:
    folder = MadeJob(late={3: 1.15}).write(tmp_path / "logs")
    for log in list(folder.iterdir()):
        text = log.read_text().replace('"0x', '"0xab').replace('"pid": ', '"pid": 9').replace("179000", "179100")
        (folder / f"second-{log.name}").write_text(text.replace('"coll_exec_time_us": ', '"coll_exec_time_us": 1'))
    found = triage(folder)
    assert len(found.ranking) == 8


def test_one_rank_alone_shows_nothing(tmp_path: Path) -> None:
    log = sorted(MadeJob(dp=2).write(tmp_path / "logs").iterdir())[0]
    with pytest.raises(InputError, match="one rank"):
        triage(log)


def test_what_does_not_recur_is_refused_with_a_way_out(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"node-1-pid{100 + rank}.log").write_text(line(rank, 0, 500 + rank) + "\n")
    with pytest.raises(InputError, match="no cycle of collectives") as refused:
        triage(tmp_path)
    assert "record more steps" in (refused.value.hint or "")


@pytest.mark.slow
def test_logs_of_which_some_were_overwritten_accuse_nobody(tmp_path: Path) -> None:
    folder = MadeJob(dp=8, tp=2, late={5: 1.2}).write(tmp_path / "logs")
    chance = Random(5)
    for log in folder.iterdir():
        log.write_text("\n".join(one for one in log.read_text().splitlines() if chance.random() > 0.1) + "\n")
    found = triage(folder)
    assert (found.verdict, found.findings) == ("inconclusive", ())
    assert "unmatched" in {one.kind for one in found.open}


def test_traces_of_the_example_profiler_plug_in_say_the_same(tmp_path: Path) -> None:
    job = MadeJob(late={3: 1.15})
    (finding,) = triage(job.write_plugin_traces(tmp_path / "traces")).findings
    assert (finding.ranks, finding.hosts) == ((3,), ())
    assert finding.time_lost_us_per_step == pytest.approx(0.15 * 4 * 5_000, rel=0.2)


def passed_on(rank: int, number: int, us: int, *, at_us: int) -> str:
    """A line of a send from the first stage of a pipeline of two, or of its receive in the second."""
    of = json.loads(line(rank // 4, number, us, communicator=f"0xbb{rank % 4}", of=2, at_us=at_us))
    of["metadata"]["pid"] = 100 + rank
    told = {key.replace("coll", "p2p"): value for key, value in of.pop("coll_perf").items()}
    return json.dumps({**of, "p2p_perf": {**told, "p2p": ("Send", "Recv")[rank // 4], "p2p_peer": 1 - rank // 4}})


def test_who_waits_for_a_late_stage_is_not_late(tmp_path: Path) -> None:
    """Stages of two, four pipelines: rank 2, of the first stage, is 2 ms late in each of 4 micro-batches."""
    for rank in range(8):
        stage, pipeline = divmod(rank, 4)
        lines = []
        for step in range(90):
            late = 2_000 + (rank * 7 + step * 13) % 40
            for batch in range(4):
                waited = (late if stage and pipeline == 2 and step else 0) + (step + batch + rank) % 30
                lines.append(passed_on(rank, 4 * step + batch, 400 + waited, at_us=60_000 * step))
            # All pipelines meet at the end of the step; those of rank 2 come 8 ms after the others.
            took = 1_000 + (0 if pipeline == 2 else 4 * late) + (step * 3 + rank) % 25
            of = json.loads(line(pipeline, step, took, communicator=f"0xaa{stage}", of=4, at_us=60_000 * step))
            of["metadata"]["pid"] = 100 + rank
            lines.append(json.dumps(of))
        (tmp_path / f"node-1-pid{100 + rank}.log").write_text("\n".join(lines) + "\n")
    found = triage(tmp_path)
    (finding,) = found.findings
    assert (len(found.ranking), finding.ranks) == (8, (2,))
