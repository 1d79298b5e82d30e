"""Gradients of uneven batches are those of the mean over all samples, whatever a job trains with."""

import json
from pathlib import Path

import pytest
from support.ranks import run_ranks

pytest.importorskip("torch")
JOBS = Path(__file__).parent / "jobs"


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The largest difference of any gradient from one process' own in double precision, three ranks."""
    out = tmp_path_factory.mktemp("gradients") / "found.json"
    run_ranks(JOBS / "gradients.py", 3, str(out))
    found: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("sizes", ["even", "uneven", "one", "none"])
@pytest.mark.parametrize("way", ["DDP", "FSDP2", "DDP accumulated", "FSDP2 accumulated", "DDP clipped"])
def test_uneven_batches_have_the_gradient_of_the_mean(away: dict[str, float], way: str, sizes: str) -> None:
    assert away[f"{way}, {sizes}"] < 1e-6


def test_without_weights_they_have_another_one(away: dict[str, float]) -> None:
    assert away["not weighed, even"] < 1e-6
    assert min(away[f"not weighed, {sizes}"] for sizes in ("uneven", "one", "none")) > 0.01


def test_means_over_tokens_are_weighed_by_tokens(away: dict[str, float]) -> None:
    assert away["tokens, uneven"] < 1e-6


def test_even_sizes_leave_every_bit_as_it_was(away: dict[str, float]) -> None:
    assert away["even sizes leave every bit"] == 1
    assert away["DDP bf16, even"] < 0.01
