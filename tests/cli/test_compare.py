"""`kair compare`: two runs named, their difference said in one line, and as a valid document."""

import json
import shutil
from pathlib import Path

import pytest
from support.cli_samples import assert_valid, kair, store_variables
from support.places import SAMPLES

pytestmark = pytest.mark.slow

BEFORE, AFTER = str(SAMPLES / "two_hosts_healthy"), str(SAMPLES / "two_hosts_upgrade")


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)


def test_the_first_line_says_what_the_time_comes_from() -> None:
    outcome = kair("compare", BEFORE, AFTER)
    assert outcome.status == 0, outcome.err
    first = outcome.out.splitlines()[0]
    assert "kair_sample::mlp on node1 (ranks 4-7)" in first
    assert "kair_sample::attention_backward on all ranks" in first


def test_the_document_is_valid_whatever_changed() -> None:
    outcome = kair("compare", BEFORE, AFTER, "--step", "6-9", "--json")
    assert outcome.status == 0, outcome.err
    assert_valid(json.loads(outcome.out), "compare")


def test_what_is_missing_from_one_of_the_recordings_is_said(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(SAMPLES / "slow_operator", damaged)
    file = next(damaged.glob("*.gz"))
    file.write_bytes(file.read_bytes()[:3000])
    for runs in ((damaged, SAMPLES / "slow_operator"), (SAMPLES / "slow_operator", damaged)):
        told = kair("compare", *map(str, runs))
        assert told.status == 0
        assert f"{file.name} is cut off" in told.err


def test_each_warning_says_whose_it_is_and_the_bars_name_stragglers_where_a_rank_stands_out(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(SAMPLES / "slow_operator", damaged)
    file = next(damaged.glob("*.gz"))
    file.write_bytes(file.read_bytes()[:3000])
    outcome = kair("compare", str(damaged), str(SAMPLES / "slow_operator"), "--json")
    document = json.loads(outcome.out)
    of_one = [one for one in document["warnings"] if f"{file.name} is cut off" in one["message"]]
    assert [one["run"] for one in of_one] == ["damaged"]
    assert of_one[0]["message"].startswith("damaged: ")
    assert_valid(document, "compare")
    data = json.loads(kair("compare", str(SAMPLES / "healthy"), str(SAMPLES / "slow_operator"), "--json").out)["data"]
    assert [data[run]["bar"]["names_straggler"] for run in ("base", "new")] == [False, True]
