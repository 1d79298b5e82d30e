"""A real job of three ranks that is resized every few steps: it trains the same, every sample once an epoch."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks

from kair_mitigate.audit import audit

JOB = Path(__file__).parent / "jobs" / "resized.py"


pytestmark = [pytest.mark.live, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    run_ranks(JOB, 3, str(folder))
    return folder, json.loads((folder / "found.json").read_text(encoding="utf-8"))


def test_losses_are_those_of_even_batches(run: tuple[Path, dict[str, Any]]) -> None:
    _, found = run
    assert found["steps"] == [63, 63]
    assert found["plans"] > 8
    assert found["loss"] < 1e-6
    assert found["weights"] < 1e-6


def test_every_sample_is_handed_out_once_an_epoch(run: tuple[Path, dict[str, Any]]) -> None:
    """By the samples' own numbers, whatever the plans say: workers fetch ahead of them."""
    folder, _ = run
    numbers = [one for rank in range(3) for one in json.loads((folder / f"numbers-{rank}.json").read_text())]
    assert sorted(numbers) == sorted(3 * [*range(500)])


def test_the_audit_finds_every_sample_once_an_epoch(run: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = run
    found = audit(sorted((folder / "trained").iterdir()), samples=500, epochs=3)
    assert (found.missing, found.twice) == ({}, {})
