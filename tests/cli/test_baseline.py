"""`kair baseline`: a healthy run kept, and what later ones are told against it."""

import json
from pathlib import Path

import pytest
from support.cli_samples import assert_valid, kair, store_variables
from support.places import SAMPLES
from support.trace_builder import Row, build

from kair_engine.baselines import Baselines
from kair_engine.comparison.analysis import against_baseline
from kair_engine.comparison.profile import profile_of
from kair_engine.errors import InputError, UnwritableStoreError, UsageError
from kair_engine.trace.model import Trace

HEALTHY, UPGRADED = str(SAMPLES / "two_hosts_healthy"), str(SAMPLES / "two_hosts_upgrade")


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)


def run(folder: Path, transfer: float, *, steps: int = 6) -> Trace:
    """Four ranks in one process group, which has no sibling; `transfer` µs in their all-reduce."""
    rows, spans = [], {}
    for step in range(steps):
        for rank in range(4):
            at, noise = 1000.0 * step, 1 + 0.004 * ((7 * step + rank) % 5 - 2)
            rows.append(Row(rank, "gpu7", "gemm", at, 300 * noise, step))
            rows.append(Row(rank, "gpu7", "allreduce", at + 320, transfer * noise, step, group="dp", seq=step))
            spans[rank, step] = (at, 900.0)
    return build(folder, rows, spans)


def test_a_link_that_is_slow_for_all_is_told_against_the_baseline(tmp_path: Path) -> None:
    baseline = profile_of(run(tmp_path / "before", 200))
    found, _ = against_baseline(run(tmp_path / "now", 300), "healthy", baseline, must=True)
    assert found is not None
    slow = {(one.operator, one.kind, one.scope): one.ratio for one in found.slower}
    assert slow["allreduce", "communication", "all_ranks"] == pytest.approx(1.5, abs=0.02)
    assert ("gemm", "compute", "all_ranks") not in slow
    same, _ = against_baseline(run(tmp_path / "again", 200), "healthy", baseline, must=True)
    assert same is not None
    assert same.slower == ()


def test_a_baseline_that_cannot_be_kept_is_no_defect(tmp_path: Path) -> None:
    store, profile = tmp_path / "store", profile_of(run(tmp_path / "before", 200))
    Baselines(store).save("healthy", profile)
    assert (store / ".baselines").stat().st_mode & 0o777 == 0o700
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".baselines").write_text("a file")
    with pytest.raises(UnwritableStoreError, match="File exists") as failure:
        Baselines(tmp_path / "full").save("healthy", profile)
    assert failure.value.exit_code == 3


@pytest.mark.slow
def test_what_is_saved_and_used_is_held_against_later_runs() -> None:
    assert kair("baseline", "save", "healthy", HEALTHY).status == 0
    assert json.loads(kair("localize", UPGRADED, "--json").out)["data"]["against_baseline"] is None
    assert kair("baseline", "use", "healthy").status == 0
    listed = json.loads(kair("baseline", "--json").out)
    assert_valid(listed, "baseline")
    assert [(one["name"], one["in_use"]) for one in listed["data"]["baselines"]] == [("healthy", True)]
    document = json.loads(kair("localize", UPGRADED, "--json").out)
    assert_valid(document, "localize")
    slower = document["data"]["against_baseline"]["slower"]
    assert {one["operator"]: one["scope"] for one in slower} == {
        "kair_sample::attention_backward": "all_ranks",
        "kair_sample::mlp": "host",
    }
    triage = kair("triage", UPGRADED)
    assert "against the baseline healthy: " in triage.out
    assert "kair_sample::attention_backward on all ranks" in triage.out
    assert "against the baseline" not in kair("localize", UPGRADED, "--baseline", "none").out
    kair("baseline", "use", "none")
    assert "against the baseline" not in kair("localize", UPGRADED).out
    kair("baseline", "use", "healthy")
    assert kair("baseline", "rm", "healthy").out.startswith("baseline healthy is removed")
    assert json.loads(kair("baseline", "--json").out)["data"]["current"] is None
    assert "against the baseline" not in kair("localize", UPGRADED).out


def test_a_baseline_is_replaced_only_if_asked_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    kept, profile = Baselines(tmp_path), profile_of(run(tmp_path / "job", 200))
    kept.save("healthy", profile)
    assert kept.load("healthy") == profile
    with pytest.raises(UsageError, match="there is a baseline healthy already"):
        kept.save("healthy", profile)
    kept.save("healthy", profile, replace=True)
    (tmp_path / ".baselines" / "healthy.json").write_text('{"version": 1, "saved_at": "", "profile": {}}')
    with pytest.raises(InputError, match="damaged"):
        kept.load("healthy")
    assert kept.listing() == ()
    kept.remove("healthy")
    with pytest.raises(UsageError, match="no baseline 'healthy'"):
        kept.load("healthy")
