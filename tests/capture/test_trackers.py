"""W&B and MLflow show the slowest rank and what it costs, and training never waits for them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from support.live_status import RANKS, STATUS, write_status
from support.patience import PATIENCE_S

import kair_capture
from kair_capture.job.trackers import Follower, values_of
from kair_engine.results.watch import WatchedVerdict, WatchResult
from kair_engine.results.whatif import PricedRanks

LOOK = replace(STATUS, ranks=tuple(replace(one, excess_us=12_500.0 * (one.rank == 2)) for one in RANKS))
HEALTHY = replace(STATUS, ranks=tuple(replace(one, slow=False) for one in RANKS))
NOT_COMPARED = replace(HEALTHY, ranks=tuple(replace(one, self_time_excess=None) for one in HEALTHY.ranks))


def _judged(*slow: PricedRanks) -> WatchResult:
    return replace(LOOK, triage=WatchedVerdict(140, "straggler", "rank 3 is slow", slow))


@pytest.mark.parametrize(
    ("status", "values"),
    [
        (LOOK, {"kair/lost_ms": 12.5, "kair/rank": 2}),
        (_judged(PricedRanks((3,), 39_000.0, 200, None)), {"kair/lost_ms": 39, "kair/rank": 3}),
        (_judged(PricedRanks((3,), 39_000.0, 20, 99)), {"kair/lost_ms": 12.5, "kair/rank": 2}),  # that one is over
        (HEALTHY, {"kair/lost_ms": 0}),
        (NOT_COMPARED, None),
        (STATUS, None),  # a rank is slow, and by how much is not known
        (replace(LOOK, step=-1), None),
    ],
)
def test_what_a_look_says(status: WatchResult, values: dict[str, float] | None) -> None:
    read = json.loads(msgspec.json.encode(status))
    assert values_of(read) == (None if values is None else (values, 150))
    assert values_of({}) is None


def test_each_look_is_logged_once_and_none_that_was_there_before(tmp_path: Path) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    write_status(tmp_path, LOOK)
    path = tmp_path / "job123" / "capture" / "status.json"
    follower = Follower(path, lambda values, step: logged.append((values, step)))
    follower.look()
    assert not logged
    for status in (replace(HEALTHY, step=160), replace(HEALTHY, step=160), replace(LOOK, step=170)):
        write_status(tmp_path, status)
        follower.look()
    path.write_text("{")
    follower.look()
    assert logged == [({"kair/lost_ms": 0}, 160), ({"kair/lost_ms": 12.5, "kair/rank": 2}, 170)]


def test_a_tracker_that_fails_ends_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def log(_: dict[str, float], __: int) -> None:
        raise ConnectionError("the server is away")

    follower = Follower(tmp_path / "job123" / "capture" / "status.json", log, every_s=0)
    write_status(tmp_path, LOOK)
    follower.run()  # it returns
    assert capsys.readouterr().err.startswith("kair: warning: no more is logged: ConnectionError: the server is away")


@pytest.mark.parametrize(
    ("tracker", "rank", "store", "said"),
    [
        (SimpleNamespace(run=None), "0", "/store", "the tracker has no run in this process"),
        (SimpleNamespace(run=None), "1", "/store", ""),
        (SimpleNamespace(log_metrics=print, active_run=lambda: None), "0", "/store", "the tracker has no run"),
        (print, "0", "s3://bucket/store", "KAIR_STORE names no folder"),
        (print, "0", "", "KAIR_STORE names no folder"),
        (object(), "0", "/store", "AttributeError"),
    ],
)
def test_nothing_stands_in_the_way_of_training(
    tracker: object,
    rank: str,
    store: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("KAIR_STORE", store)
    kair_capture.log_to(tracker, "job123")
    err = capsys.readouterr().err
    assert said in err and bool(said) is bool(err)


_FOLLOWED = f"""
import sys, time
from pathlib import Path
import kair_capture.job.trackers as trackers

start = trackers.Follower.__init__
trackers.Follower.__init__ = lambda self, status, log: start(self, status, log, every_s=0.01)

def train(tracker, logged):
    import kair_capture
    kair_capture.log_to(tracker, "job123")
    place = Path(sys.argv[1])
    place.replace(place.with_name("status.json"))
    until = time.monotonic() + {PATIENCE_S}
    while not logged() and time.monotonic() < until:
        time.sleep(0.01)
"""
_WANDB = """
import wandb
run = wandb.init(project="p", mode="offline", dir=sys.argv[2])
run.log({"loss": 1.0})
train(wandb, lambda: "kair/rank" in dict(run.summary))
run.log({"loss": 0.5})
print("LOGGED", run.summary["kair/lost_ms"], run.summary["kair/rank"], run.summary["kair/step"], run.step)
run.finish()
"""
_MLFLOW = """
import mlflow
mlflow.set_tracking_uri("file:" + sys.argv[2])
with mlflow.start_run() as run:
    of_run = lambda: mlflow.get_run(run.info.run_id).data.metrics
    train(mlflow, lambda: len(of_run()) == 2)
metric, = mlflow.MlflowClient().get_metric_history(run.info.run_id, "kair/lost_ms")
print("LOGGED", of_run()["kair/lost_ms"], of_run()["kair/rank"], metric.step)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "script", "said"), [("wandb", _WANDB, "12.5 2 150 2"), ("mlflow", _MLFLOW, "12.5 2.0 150")]
)
def test_the_real_tracker_has_the_look(name: str, script: str, said: str, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    write_status(tmp_path, LOOK)
    status = tmp_path / "job123" / "capture" / "status.json"
    status.replace(later := status.with_name("later.json"))
    environment = {**os.environ, "KAIR_STORE": str(tmp_path), "WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    command = [sys.executable, "-c", _FOLLOWED + script, str(later), str(tmp_path / "runs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert f"LOGGED {said}\n" in done.stdout and "kair: warning" not in done.stderr, done.stderr
