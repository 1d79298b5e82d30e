"""docs/python.md runs: every recipe, in order, on sample traces."""

import re
from pathlib import Path

import polars as pl
import pytest
from support.cli_samples import kair, store_variables
from support.places import ROOT, SAMPLES

import kair as api
from kair_engine.errors import InputError, UsageError

PAGE = ROOT / "docs" / "python.md"
SAMPLE = SAMPLES / "slow_operator"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def _beside_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_variables(monkeypatch, tmp_path)
    for name, sample in (("traces", "slow_operator"), ("before", "healthy"), ("after", "slow_operator")):
        (tmp_path / name).symlink_to(SAMPLES / sample)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("_beside_traces")
def test_every_recipe_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    assert len(BLOCKS) == 11
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)  # the page's own text
    assert capsys.readouterr().out.startswith("straggler: rank 2")
    assert names["saved"] == pytest.approx(24_000, rel=0.1)
    assert names["verdicts"] == {"before/": "no_straggler", "after/": "straggler"}
    kernels, late, account = names["kernels"], names["late"], names["account"]
    assert isinstance(kernels, pl.DataFrame) and isinstance(late, pl.DataFrame) and isinstance(account, pl.DataFrame)
    assert kernels["us"][0] > 0
    assert late["last_rank"][0] == 2
    steps = api.open("traces/").steps
    both = account.join(steps, on=["step", "rank"], suffix="_of_step")
    assert both.height == account.height == steps.height
    assert (both["duration_us"] - both["duration_us_of_step"]).abs().max() == pytest.approx(0, abs=0.01)
    assert Path("incident.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.slow
@pytest.mark.usefixtures("_beside_traces")
def test_its_json_is_the_command_s() -> None:
    job = api.open("traces/", progress=False)
    assert job.triage().to_json() == kair("triage", "traces/", "--json").out
    assert (
        job.blame(step=10, limit=3).to_json() == kair("blame", "traces/", "--step", "10", "--limit", "3", "--json").out
    )
    assert job.steps.equals(job.query("SELECT * FROM steps"))


@pytest.mark.slow
@pytest.mark.usefixtures("_beside_traces")
def test_a_notebook_shows_the_report_apart_from_its_own_styles() -> None:
    job = api.open("traces/")
    shown = job.triage()._repr_html_()
    assert shown.startswith("<iframe") and "sandbox" in shown and "<script" not in shown
    assert "<b" not in job.info()._repr_html_()
    assert repr(job) == "<kair.Job traces: 4 ranks, 12 steps>"


@pytest.mark.slow
@pytest.mark.usefixtures("_beside_traces")
def test_what_cannot_be_answered_is_an_error_with_a_way_out() -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        api.open("nowhere/")
    job = api.open("traces/")
    with pytest.raises(UsageError, match="step 99 is not among"):
        job.triage(step=99)
    with pytest.raises(UsageError, match="no step is chosen"):
        job.triage(step=())
    with pytest.raises(UsageError, match="no such question 'straggler'"):
        job.ask("straggler")
