"""One callback for several trainers: steps, samples, and what a trainer does besides, as the recorded job has them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.captured import rings_of

import kair_capture
from kair_capture.job.callbacks import samples_in
from kair_capture.job.session import current

_HUGGING_FACE = """
import sys, torch
import transformers
import kair_capture

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        return {"loss": ((self.layer(x)[:, 0] - labels) ** 2).mean(), "logits": self.layer(x)}

data = [{"x": torch.randn(4), "labels": torch.tensor(0.5)} for _ in range(26)]
arguments = transformers.TrainingArguments(
    sys.argv[1], per_device_train_batch_size=4, max_steps=6, gradient_accumulation_steps=2, save_steps=3, eval_steps=2,
    eval_strategy="steps", report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=100)
transformers.Trainer(
    Small(), arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[kair_capture.callback("job")]).train()
"""
_LIGHTNING = """
import sys, torch
import lightning.pytorch as lightning
import kair_capture

class Small(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).mean()
    def validation_step(self, batch, index):
        self.layer(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-2)

def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(26, 4)), batch_size=4)

trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, callbacks=[kair_capture.callback("job")],
    logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[1])
trainer.fit(Small(), loader(), loader())
assert trainer.save_checkpoint.__qualname__ == "Trainer.save_checkpoint"
"""


def recorded(run_dir: Path) -> tuple[list[int], list[int], set[tuple[int, str]]]:
    """Steps, the samples of each, and which scopes are in which steps."""
    drained = rings_of(run_dir).peek(to_the_end=True)
    assert drained is not None
    rows = drained.new_rows(None)
    assert rows is not None
    scopes = {(one.step, one.scope) for one in drained.scopes_of(rows)}
    return rows["step"].tolist(), rows["samples"].tolist(), scopes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needs", "script", "samples", "scopes"),
    [
        (
            ("transformers", "accelerate"),
            _HUGGING_FACE,
            [8, 8, 8, 2, 8, 8],
            {(2, "evaluation"), (3, "checkpoint"), (4, "evaluation")},
        ),
        (
            ("lightning",),
            _LIGHTNING,
            [8, 8, 8, 2, 8, 8, 8, 2],
            {(4, "evaluation"), (4, "checkpoint")},
        ),
    ],
)
def test_a_trainer_s_steps_are_the_job_s(
    tmp_path: Path, needs: tuple[str, ...], script: str, samples: list[int], scopes: set[tuple[int, str]]
) -> None:
    if missing := [name for name in needs if find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    environment = {**os.environ, "KAIR_RUN_DIR": str(tmp_path / "run")}
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kair: warning" not in done.stderr
    steps, told, found = recorded(tmp_path / "run")
    assert steps == list(range(len(samples)))
    assert told == samples
    assert {one for one in found if one[1] in ("evaluation", "checkpoint")} == scopes


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Capture begins in this process, as in a job without a framework."""
    monkeypatch.setattr(current, "_failed", False)
    monkeypatch.setattr("kair_capture.job.launch.FRAMEWORKS", ())
    monkeypatch.setenv("KAIR_RUN_DIR", str(tmp_path / "run"))
    yield tmp_path / "run"
    kair_capture.stop()


class Titan:
    """As far as torchtitan's trainer is asked."""

    def __init__(self) -> None:
        self.checkpointer = SimpleNamespace(save=lambda step: f"saved {step}")
        self.validator = None
        self.trained: list[int] = []

    def train_step(self, batch: int) -> int:
        self.trained.append(batch)
        return batch * 2


def test_a_trainer_without_callbacks_is_followed_by_its_methods(run_dir: Path) -> None:
    trainer = Titan()
    assert kair_capture.callback("job").attach(trainer) is trainer
    for batch in range(3):
        assert trainer.train_step(batch) == batch * 2
        assert trainer.checkpointer.save(batch) == f"saved {batch}"
    kair_capture.stop()
    steps, _, scopes = recorded(run_dir)
    assert (trainer.trained, steps) == ([0, 1, 2], [0, 1, 2])
    assert scopes == {(1, "checkpoint"), (2, "checkpoint")}


def test_what_a_trainer_calls_fits_whatever_is_installed(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the two trainers' classes: their events, in their order."""

    class Base:
        state_key = "key"

    class Other:
        def on_substep_end(self) -> str:
            return "of the base"

    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=Other))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", SimpleNamespace(Callback=Base))
    made: Any = kair_capture.callback("job")
    assert isinstance(made, Base) and isinstance(made, Other)
    assert made.on_substep_end() == "of the base"
    nothing, both = SimpleNamespace(), SimpleNamespace(should_evaluate=True, should_save=True)
    made.on_train_begin(None, None, nothing, model=None)
    made.on_step_end(None, None, both, optimizer=None)
    made.on_evaluate(None, None, both, metrics={})
    made.on_save(None, None, both)
    made.on_step_begin(None, None, nothing)
    made.on_step_end(None, None, nothing)
    made.on_train_end(None, None, nothing)
    kair_capture.stop()
    steps, _, scopes = recorded(run_dir)
    assert steps == [0, 1]
    assert scopes == {(1, "evaluation"), (1, "checkpoint")}


def test_samples_are_counted_by_the_first_tensor() -> None:
    tensor = SimpleNamespace(shape=(7, 3))
    assert samples_in(tensor) == samples_in([tensor, 5]) == samples_in({"a": "text", "b": (tensor,)}) == 7
    assert samples_in(SimpleNamespace(shape=())) is samples_in("text") is samples_in(None) is None
    assert samples_in([[[[[[tensor]]]]]]) is None
