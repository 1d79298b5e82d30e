"""`kair fleet` and `kair jobs --whatif` over a store of recorded samples."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_samples import assert_valid, kair, store_variables
from support.places import SAMPLES
from support.stored_jobs import edit_job_file
from support.watched_job import HANG, watched_job

import kair as api
import kair_engine.triage.analysis
from kair_engine.recording.job_file import recordings_in

pytestmark = pytest.mark.skipif(not (SAMPLES / "healthy").exists(), reason="the sample traces are not recorded yet")


@pytest.fixture(scope="module")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two jobs, priced."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("kair")
        store_variables(patch, folder)
        for name, sample in (("night", "slow_operator"), ("calm", "healthy")):
            assert kair("import", str(SAMPLES / sample), "--job", name).status == 0
        before = kair("jobs", "-o", "table").out
        assert "GPU-hours" not in before, "columns of which nothing is known"
        assert kair("fleet").status == 0
        yield folder / "store"


@pytest.fixture
def _nothing_is_analysed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("it was analysed before")

    monkeypatch.setattr(kair_engine.triage.analysis, "triage", forbidden)


@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_is_analysed")
def test_the_second_look_costs_nothing_and_says_the_same(_store: Path) -> None:
    outcome = kair("fleet", "--gpu-cost", "2", "--json")
    assert outcome.status == 0, outcome.err
    document = json.loads(outcome.out)
    assert_valid(document, "fleet")
    data = document["data"]
    assert [(one["name"], one["verdict"], one["cause"]) for one in data["jobs"]] == [
        ("night", "straggler", "compute"),
        ("calm", "no_straggler", None),
    ]
    assert data["jobs"][0]["accused_ranks"] == [2]
    assert data["cost_per_day"] == pytest.approx(2 * data["gpu_hours_per_day"])
    assert data["distribution"][-1] == {"slowdown": data["worst_slowdown"], "share": 1.0}
    assert data["hosts"][0]["accused_in"] == ["night"]
    assert [(one["slow"], one["within_noise"]) for one in data["jobs"]] == [(True, False), (False, True)]
    assert (data["slow"], data["slow_share"]) == (1, 0.5)
    assert data["waste_least"] <= data["waste"] <= data["waste_most"]
    causes = [(one["group"], one["jobs"]) for one in data["groups"] if one["by"] == "cause"]
    assert causes == [("compute", 1), ("none", 1)]
    assert data["jobs"][1]["slowdown"] > 1.05, "S stays what the replay says"
    assert all("within noise" in kair(command, "-o", "wide").out for command in ("fleet", "jobs"))
    page = kair("fleet").out
    assert "jobs slowed by 10 % or more: 50 % (9 to 91); GPU time wasted: " in page
    assert page.startswith("1 of 2 jobs with a straggler; fixing what was found saves ")
    assert "share of jobs with this S or less" in page
    listed = json.loads(kair("jobs", "--whatif", "--gpu-cost", "2", "--json").out)
    assert_valid(listed, "jobs")
    columns = ("slowdown", "waste", "gpu_hours_per_day", "cost_per_day", "cause")
    of_jobs = {one["name"]: [one[name] for name in columns] for one in listed["data"]["jobs"]}
    assert of_jobs == {one["name"]: [one[name] for name in columns] for one in data["jobs"]}
    assert "GPU-hours/day" in kair("jobs").out, "what is known is listed without --whatif too"
    assert listed["data"]["jobs"][0]["last_verdict"] == "no_straggler", "the triage's verdict is kept as well"


@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_is_analysed")
def test_the_fleet_s_report_tells_the_same_in_either_form(_store: Path, tmp_path: Path) -> None:
    headline = kair("fleet").out.splitlines()[0]
    for name in ("fleet.html", "fleet.md"):
        assert kair("fleet", "--report", str(tmp_path / name)).status == 0
        assert headline in (tmp_path / name).read_text()
    assert "<svg" in (tmp_path / "fleet.html").read_text()


@pytest.mark.slow
def test_python_prices_the_same_and_writes_nothing(_store: Path, tmp_path: Path) -> None:
    store = shutil.copytree(_store, tmp_path / "store")
    for name in ("calm", "night"):
        (recordings_in(store / name)[0] / "cost.json").unlink()
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    fleet = api.fleet(store=store, gpu_cost=2, progress=False)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    asked = json.loads(kair("fleet", "--gpu-cost", "2", "--json").out)["data"]
    mine = json.loads(fleet.to_json())["data"]
    assert {**mine, "store": ""} == {**asked, "store": ""}
    assert (fleet.slow, fleet.jobs[1].within_noise) == (1, True)
    assert "nothing found" in fleet.text()


def test_a_job_that_cannot_be_priced_is_named_and_leaves_the_others(
    _store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(_store, tmp_path / "store")
    monkeypatch.setenv("KAIR_STORE", str(store))
    (recording,) = recordings_in(store / "calm")
    (recording / "cost.json").unlink()
    (cost,) = recordings_in(store / "night")
    assert (cost / "cost.json").stat().st_mode & 0o077 == 0
    edit_job_file(store / "calm", fragments=[])
    outcome = kair("fleet")
    assert outcome.status == 0
    assert "job calm is left out" in outcome.err
    assert outcome.out.startswith("1 of 1 job with a straggler")


def test_an_empty_store_has_no_fleet(tmp_path: Path) -> None:
    outcome = kair("fleet", "--store", str(tmp_path))
    assert (outcome.status, outcome.out) == (3, "")
    assert "no job in the store" in outcome.err


def test_what_a_job_lost_before_it_hung_is_not_the_price_of_the_hang(tmp_path: Path) -> None:
    watched_job(tmp_path, hang=HANG)
    told = json.loads(kair("fleet", "--store", str(tmp_path), "-o", "json").out)["data"]
    groups = {one["group"]: one["waste"] for one in told["groups"] if one["by"] == "cause"}
    (job,) = told["jobs"]
    assert groups.pop("hang") is None
    assert groups == {job["cause"]: job["waste"]}
    assert job["hangs"] and job["waste"] > 0
