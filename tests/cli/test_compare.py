"""`kair compare`: two runs named, their difference said in one line, and as a valid document."""

import json
from pathlib import Path

import pytest
from support.cli_samples import assert_valid, kair, store_variables
from support.places import SAMPLES

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
