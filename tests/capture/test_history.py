"""`kair triage` of a job of which nothing was sampled: by what capture keeps of every step of a real job."""

import json
import re
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest
from support.watched_job import HANG, watched_job

from kair_capture.coordinator.summary import summary_of
from kair_capture.places import JobPlaces
from kair_engine.results.watch import WatchResult
from kair_tui.cli.main import main


@pytest.fixture
def places(tmp_path: Path) -> JobPlaces:
    """The job as its coordinator leaves it, without a recording."""
    return watched_job(tmp_path / "store")


def asked(places: JobPlaces, *options: str) -> int:
    return main(["triage", "job", "--store", str(places.store), *options])


def test_the_slow_rank_is_named_before_anything_is_sampled(
    places: JobPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(places, "--json") == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["verdict"] == "straggler"
    (found,) = [one for one in data["findings"] if one["ranks"]]
    # The script sleeps 3 ms longer in its scope from step 100 on.
    assert (found["ranks"], found["hosts"], found["scope"], found["since"]) == ([1], ["node-1"], "augment", 100)
    # Not all of the 3 ms hold the job up: another rank is last now and then.
    assert 1000 < found["time_lost_us_per_step"] <= 3000
    assert {"every_step", "since", "noticed"} <= {one["kind"] for one in found["evidence"]}
    assert asked(places) == 0
    text = capsys.readouterr().out
    assert "rank 1 on node-1: " in text
    assert " in augment" in text
    assert "since step 100" in text
    assert not (places.capture / "verdict.json").exists()


def test_other_commands_still_need_a_sampled_step(places: JobPlaces, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("localize job", "blame job", "whatif job --step 100-120", "rank job --rank 1", "query job 'SELECT 1'"):
        assert main([*shlex.split(line), "--store", str(places.store)]) == 3
        told = capsys.readouterr().err
        assert "needs sampled steps" in told
        assert "kair triage job and kair steps job answer by the history" in told


def test_of_a_job_that_told_no_step_yet_that_is_said(places: JobPlaces, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(places.steps)
    assert asked(places) == 3
    assert "no step of it was recorded yet" in capsys.readouterr().err
    places.steps.mkdir()
    (places.steps / "part-00000001.parquet").write_bytes(b"no table")
    assert asked(places) == 3
    assert "cannot read the steps of job job" in capsys.readouterr().err


def test_every_face_opens_a_job_of_which_nothing_was_sampled(
    places: JobPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", str(places.store))
    assert main(["steps", "job", "--json", *store]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert [(row["step"], row["rank"]) for row in data["steps"][:5]] == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert all(0 < row["own_us"] <= row["duration_us"] for row in data["steps"])
    assert {row["own_rank"] for row in data["summary"] if row["step"] >= 100} >= {1}
    assert main(["steps", "job", "--step", "120", *store]) == 0
    assert "4 ranks: step 28.8 ms, of step 120 alone (recorded and not sampled)" in capsys.readouterr().out
    assert main(["info", "job", "--json", *store]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["ranks"], data["hosts"], data["operations"]) == ([0, 1, 2, 3], {"node-1": [0, 1, 2, 3]}, 0)
    assert (data["steps"][0], data["steps"][-1], data["state"], data["format"]) == (1, 239, "over", "steps")
    assert main(["info", "job", *store]) == 0
    assert "231 steps recorded, none sampled" in capsys.readouterr().out
    assert main(["shell", "job", "-c", "step 100-150; steps; triage --oneline", *store]) in (0, 2)
    assert main(["use", "job", *store]) == 0
    capsys.readouterr()
    assert main(["info", *store]) == 0
    assert "4 ranks" in capsys.readouterr().out


def test_steps_that_were_not_sampled_are_judged_by_their_history_and_it_is_said(
    places: JobPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(places, "--step", "41-99", "--json") == 0
    healthy = json.loads(capsys.readouterr().out)
    assert not any(one["ranks"] for one in healthy["data"]["findings"])
    assert (healthy["data"]["is_sampled"], [one["code"] for one in healthy["warnings"]]) == (False, ["not_sampled"])
    assert asked(places, "--step", "110-239", "--json") == 0
    slow = json.loads(capsys.readouterr().out)["data"]
    assert [one["ranks"] for one in slow["findings"] if one["ranks"]] == [[1]]
    assert (slow["steps"][0], slow["steps"][-1], slow["history_steps"]) == (110, 239, len(slow["steps"]))
    assert asked(places, "--step", "300-600") == 2
    assert "no step of 300-600 is among the complete steps of this job (1-239)" in capsys.readouterr().err


def test_jobs_and_fleet_list_a_job_by_the_verdict_of_its_history(
    places: JobPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", str(places.store), "--json")
    assert asked(places, "--json") == 0
    triaged = json.loads(capsys.readouterr().out)["data"]
    assert main(["jobs", *store]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["data"]["jobs"]
    assert (listed["last_verdict"], listed["last_summary"]) == (triaged["verdict"], triaged["summary"])
    assert (listed["ranks"], listed["steps"], listed["operations"]) == (4, 231, 0)
    assert main(["fleet", *store]) == 0
    (job,) = json.loads(capsys.readouterr().out)["data"]["jobs"]
    assert (job["verdict"], job["accused_ranks"], job["slowdown"]) == ("straggler", [1], None)
    assert main(["jobs", "rm", "job", "--store", str(places.store)]) == 0
    assert not places.folder.exists()


_COMMAND = re.compile(r"kair [a-z]+(?: [a-z]+)??(?: --job)? job\b")
"""A whole line in a hint; `job` is the job's name."""


@pytest.mark.slow
def test_what_messages_about_a_job_without_a_sample_recommend_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    for hang in (None, HANG):
        places = watched_job(store, hang=hang)
        status = msgspec.json.decode(places.status.read_bytes(), type=WatchResult)
        hints = [*summary_of(status)]
        for line in ("localize job", "timeline job", "export job -o t.json", "compare job job", "baseline save b job"):
            assert main([*shlex.split(line), "--store", str(store)]) == 3
            hints.append(capsys.readouterr().err)
        for line in ("triage job", "steps job", "info job", "ticket job", "watch job --once", "jobs"):
            assert main([*shlex.split(line), "--store", str(store)]) == 0
            hints.append(capsys.readouterr().out)
        told = {one[0] for text in hints for one in _COMMAND.finditer(text)}
        assert {"kair triage job", "kair steps job"} <= told
        for line in told:
            assert main([*shlex.split(line)[1:], "--store", str(store)]) == 0, line
        capsys.readouterr()
        shutil.rmtree(places.folder)


def test_without_a_coordinator_hints_do_not_lead_in_a_circle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = watched_job(tmp_path / "store")
    places.status.unlink()
    for line in ("triage", "steps", "info"):
        assert main([line, "job", "--store", str(places.store)]) == 3
        assert "kair coordinator --job job" in capsys.readouterr().err
