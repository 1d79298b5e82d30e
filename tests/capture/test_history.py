"""`kair triage` of a job of which nothing was sampled: by what capture keeps of every step of a real job."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from kair_capture.places import JobPlaces
from kair_engine.results.watch import Alert, Sampling, WatchedRank, WatchResult
from kair_tui.cli.main import main

RECORDED = Path(__file__).parents[1] / "recordings" / "scopes"


@pytest.fixture
def places(tmp_path: Path) -> JobPlaces:
    """The job as its coordinator leaves it, without a recording."""
    places = JobPlaces(tmp_path / "store", "job")
    places.capture.mkdir(parents=True)
    for name in ("steps", "scopes"):
        shutil.copytree(RECORDED / name, places.folder / name)
    now = datetime.now(UTC).isoformat()
    ranks = tuple(WatchedRank(rank, "node-1", 239, None, None, None, 0.0, slow=rank == 1) for rank in range(4))
    noticed = Alert(now, "slow_rank", 124, (1,), ("node-1",), 0.5, 9.0)
    status = WatchResult(
        "job", now, "over", 239, None, None, 4, ranks, (), (noticed,), Sampling(0.01, 0.0, 0, 0, 0, ()), {}
    )
    places.status.write_bytes(msgspec.json.encode(status))
    return places


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
    assert main(["localize", "job", "--store", str(places.store)]) == 3
    assert "nothing of it was sampled yet" in capsys.readouterr().err


def test_of_a_job_that_told_no_step_yet_that_is_said(places: JobPlaces, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(places.steps)
    assert asked(places) == 3
    assert "nothing of it was sampled yet" in capsys.readouterr().err
    places.steps.mkdir()
    (places.steps / "part-00000001.parquet").write_bytes(b"no table")
    assert asked(places) == 3
    assert "cannot read the steps of job job" in capsys.readouterr().err
