"""Gradients of uneven batches are those of the mean over all samples, whatever a job trains with."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.ranks import run_ranks

import kair_mitigate
from kair_mitigate.plans import Plan, State

JOBS = Path(__file__).parent / "jobs"


pytestmark = [pytest.mark.live, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]


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


@pytest.mark.parametrize("sizes", ["even", "uneven", "one", "none"])
@pytest.mark.parametrize(("way", "most"), [("DDP bf16", 5e-3), ("DDP fp16", 5e-4)])
def test_narrow_numbers_and_a_loss_scaler_keep_their_precision(
    away: dict[str, float], way: str, most: float, sizes: str
) -> None:
    assert away[f"{way}, {sizes}"] < most


@pytest.fixture
def unpatched() -> Iterator[None]:
    from kair_mitigate import gradients

    yield
    gradients.unpatch()


@pytest.mark.usefixtures("unpatched")
def test_a_compiled_model_is_compiled_once_for_all_sizes() -> None:
    import torch
    from torch._dynamo.testing import CompileCounter

    compiled = CompileCounter()
    model = torch.compile(torch.nn.Linear(3, 1), backend=compiled)
    sizes = range(2, 23)
    coming = tuple(Plan(step, step, (size,)) for step, size in enumerate(sizes) if step)
    loader = kair_mitigate.loader(torch.randn(sum(sizes), 3), sizes[0])
    loader.load_state_dict(State(7, 0, 0, 0, Plan(0, 0, (sizes[0],)), coming).as_json())
    seen = []
    for batch in loader:
        model(batch).mean().backward()
        seen.append(len(batch))
    assert seen == list(sizes)
    assert compiled.frame_count == 1


@pytest.mark.usefixtures("unpatched")
def test_a_compiled_model_of_one_size_goes_on() -> None:
    import torch
    from torch._dynamo.testing import CompileCounter

    def model(batch: torch.Tensor) -> torch.Tensor:
        return batch.sum() if batch.shape[0] == 4 else batch.mean()

    compiled = torch.compile(model, backend=CompileCounter())
    assert [compiled(batch).item() for batch in kair_mitigate.loader(torch.ones(8, 3), 4)] == [12, 12]


@pytest.mark.usefixtures("unpatched")
def test_batches_of_a_step_that_are_taken_ahead_keep_their_own_weights() -> None:
    import torch

    loader = kair_mitigate.loader(torch.ones(5, 1), 5, accumulate=2)
    parameter = torch.zeros(1, requires_grad=True)
    for mean in [(batch * parameter).mean() * len(batch) for batch in loader]:
        mean.backward()
    assert parameter.grad is not None
    assert parameter.grad.item() / 2 == pytest.approx((3 * 3 + 2 * 2) / 5)


def test_a_model_that_no_weight_makes_exact_is_told() -> None:
    import torch

    with pytest.warns(RuntimeWarning, match="1 is a BatchNorm of each rank's own batch"):
        kair_mitigate.loader(torch.ones(4, 1), 2, model=torch.nn.Sequential(torch.nn.ReLU(), torch.nn.BatchNorm1d(1)))
