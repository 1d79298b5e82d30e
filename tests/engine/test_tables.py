"""The tables of a trace for SQL and Python: as described, and adding up to what the analyses say."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.answers import recorded, triaged
from support.places import SAMPLES
from support.trace_builder import trace as built

from kair.app.tables import TABLES, table
from kair_engine.errors import UsageError
from kair_engine.results.triage import Finding
from kair_engine.timeline.clocks import synchronise
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace

SLOW = SAMPLES / "slow_operator"
JOBS = sorted({path.parent.name for path in SAMPLES.glob("*/*.json.gz")})


def _nobody() -> Sequence[Finding]:
    raise AssertionError("triage ran for a table that has nothing of it")


def _read(name: str, trace: Trace) -> pl.DataFrame:
    return table(name, trace, _nobody).collect(engine="streaming")


def _slow() -> Sequence[Finding]:
    return triaged(SLOW).findings


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_as_it_is_described(name: str) -> None:
    of = TABLES[name]
    read = of.frame(recorded(SLOW), _slow)
    assert read.collect_schema() == of.empty().collect_schema()
    assert [column.name for column in of.columns] == read.collect_schema().names()
    assert len(read.collect()) > 0
    for column in of.columns:
        assert column.about.endswith("."), column.name
        assert column.unit == next((unit for end, unit in _UNITS if column.name.endswith(end)), ""), column.name
    assert of.about.endswith(".")


_UNITS = (("_us", "µs"), ("_us_per_step", "µs"), ("_ns", "ns"), ("bytes", "bytes"))


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_operations_are_those_of_the_recording(job: str) -> None:
    trace = recorded(SAMPLES / job)
    read, scanned = _read("operations", trace), trace.scan().collect()
    assert len(read) == len(scanned)
    assert read["duration_us"].sum() == pytest.approx(scanned["duration_ns"].sum() / 1e3)
    assert read["begin_ns"].equals(scanned["start_ns"].alias("begin_ns"))
    assert set(read["step"].unique()) == set(trace.steps)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_steps_and_the_account_add_up_to_the_same(job: str) -> None:
    trace = recorded(SAMPLES / job)
    steps, account = _read("steps", trace), _read("account", trace)
    spent = account.group_by("step", "rank").agg(pl.col("duration_us").sum().alias("spent"))
    both = steps.join(spent, on=["step", "rank"], how="full", coalesce=True)
    assert both["spent"].null_count() == both["duration_us"].null_count() == 0
    assert np.allclose(both["spent"], both["duration_us"])
    ranks = _read("ranks", trace)
    assert ranks["rank"].to_list() == list(trace.job.ranks)
    assert ranks["time_us"].sum() == pytest.approx(steps["duration_us"].sum())


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_collectives_are_those_that_the_engine_matches(job: str) -> None:
    trace = recorded(SAMPLES / job)
    read = _read("collectives", trace)
    members = waited = 0
    for ops in each_step(trace):
        sync = synchronise(ops)
        members += len(sync.collectives.row)
        own = sync.own_ns[sync.collectives.instance]
        waited += int(np.maximum(sync.collectives.duration_ns - own, 0).sum())
    assert len(read) == members
    assert read["waiting_us"].sum() == pytest.approx(waited / 1e3)
    assert np.allclose(read["transfer_us"] + read["waiting_us"], read["duration_us"])
    alone = read.filter((pl.col("rank") == pl.col("last_rank")) & (pl.col("kind") == "collective"))
    assert alone["waiting_us"].sum() == 0


def test_findings_have_a_row_for_each_rank_to_blame() -> None:
    read = table("findings", recorded(SLOW), _slow).collect()
    assert read.select("finding", "rank", "cause", "operator").rows() == [(1, 2, "compute", "kair_sample::mlp")]


def test_texts_are_strings_and_ranks_join(tmp_path: Path) -> None:
    made = built(tmp_path, "step 0: 0+100\n0-1 gpu7 | a 0+5 | b 10+5\n")
    read = table("operations", made, _nobody)
    assert read.filter(pl.col("name").str.contains("b")).select(pl.len()).collect().item() == 2
    assert len(read.join(table("ranks", made, _nobody), on="rank").collect()) == len(read.collect())


def test_without_a_step_there_is_no_table(tmp_path: Path) -> None:
    made = built(tmp_path, "step 0: 0+100\n0 gpu7 | a 0+5\n").select([])
    with pytest.raises(UsageError, match="no complete step"):
        table("steps", made, _nobody)
