"""Provides one callback for Hugging Face's Trainer and Lightning, and the same calls for torchtitan and custom loops.

A trainer's events mark steps, evaluations and checkpoints for capture. The base classes of callbacks are taken from
modules that the script has imported: none is imported here.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, cast

from kair_capture.job import api
from kair_capture.job.trackers import log_to

_CLASSES: Final = (
    ("transformers", "TrainerCallback"),
    ("lightning.pytorch", "Callback"),
    ("pytorch_lightning", "Callback"),
)
EVALUATION: Final = "evaluation"
CHECKPOINT: Final = "checkpoint"
_DEEPEST: Final = 4
"""Depth to which a batch is searched for a tensor: lists of dictionaries of lists."""


class Marks:
    """Marks from a trainer's events. Custom loops may call `step`, `scope` and `samples`."""

    def __init__(self, job: str | None = None, log: object = None) -> None:
        """`job` is its name, else KAIR_JOB; `log` is `wandb` or `mlflow`. Capture starts when training does."""
        self._job, self._log = job, log
        self._scope: api.scope | None = None
        self._steps: int | None = None
        self._undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Start capture, unless it has, because training begins."""
        api.start(self._job)
        if self._log is not None:
            log_to(self._log, self._job)

    def step(self) -> None:
        """End a step."""
        api.step()

    def samples(self, batch: object) -> None:
        """Note the samples of this batch, if their number is visible."""
        if (count := samples_in(batch)) is not None:
            api.samples(count)

    def _enter(self, name: str | None) -> None:
        """Enter the scope of what the trainer does besides training; None if it trains again."""
        if self._scope is not None:
            self._scope.__exit__(None, None, None)
        self._scope = None if name is None else api.scope(name).__enter__()

    def _around(self, owner: object, name: str, scope: str | None) -> None:
        """Run the method in a scope; None makes its end the step's. Does nothing without such a method."""
        method = getattr(owner, name, None)
        if not callable(method):
            return

        @wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if scope is not None:
                with api.scope(scope):
                    return method(*args, **kwargs)
            found = method(*args, **kwargs)
            self.step()
            return found

        setattr(owner, name, called)
        self._undo.append(lambda: delattr(owner, name))

    def _end(self) -> None:
        self._enter(None)
        while self._undo:
            self._undo.pop()()


class HuggingFace(Marks):
    """The events of `transformers.Trainer`; unused arguments are ignored."""

    def on_train_begin(self, *_: object, **given: object) -> None:
        """Start capture."""
        self.begin()
        hook = getattr(given.get("model"), "register_forward_pre_hook", None)
        if hook is not None:
            self._undo.append(hook(self._before_forward, with_kwargs=True).remove)

    def on_step_end(self, _args: object, _state: object, control: object, **_: object) -> None:
        """End a step after the optimizer's; the trainer's own callbacks have decided what follows."""
        self.step()
        self._enter(_following(control))

    def on_epoch_end(self, _args: object, _state: object, control: object, **_: object) -> None:
        """Note the end of an epoch, after which it may be evaluated and saved too."""
        self._enter(_following(control))

    def on_evaluate(self, _args: object, _state: object, control: object, **_: object) -> None:
        """Note the end of an evaluation, which a checkpoint may follow."""
        self._enter(CHECKPOINT if getattr(control, "should_save", False) else None)

    def on_save(self, *_: object, **__: object) -> None:
        """Note the end of a checkpoint."""
        self._enter(None)

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Begin the next step, whatever followed the last one."""
        self._enter(None)

    def on_train_end(self, *_: object, **__: object) -> None:
        """End the marks; Lightning's event has the same name."""
        self._end()

    def _before_forward(self, module: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> None:  # noqa: ANN401
        # Code that torch.compile traces stays without it, and so without a graph break.
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        if module.training and not (compiler is not None and compiler.is_compiling()):
            self.samples([*args, kwargs])


def _following(control: object) -> str | None:
    """Return what Hugging Face's trainer does after this event."""
    if getattr(control, "should_evaluate", False):
        return EVALUATION
    return CHECKPOINT if getattr(control, "should_save", False) else None


class Lightning(Marks):
    """The events of Lightning's `Trainer`."""

    def on_train_start(self, trainer: Any, *_: object) -> None:  # noqa: ANN401
        """Start capture."""
        self.begin()
        self._steps = trainer.global_step
        self._around(trainer, "save_checkpoint", CHECKPOINT)

    def on_train_batch_start(self, _trainer: object, _module: object, batch: object, *_: object) -> None:
        """Note a batch, of which a step may take several."""
        self.samples(batch)

    def on_train_batch_end(self, trainer: Any, *_: object) -> None:  # noqa: ANN401
        """End a step if an optimizer has run, not if gradients were only added up."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.step()

    def on_validation_start(self, *_: object) -> None:
        """Note the begin of an evaluation."""
        self._enter(EVALUATION)

    def on_validation_end(self, *_: object) -> None:
        """Note the end of an evaluation."""
        self._enter(None)

    def on_exception(self, *_: object) -> None:
        """End the marks after an error."""
        self._end()


class Callback(HuggingFace, Lightning):
    """Both, and torchtitan's trainer by `attach`."""

    def attach(self, trainer: object) -> object:
        """Attach to a trainer without callbacks, as torchtitan's: its `train_step` is a step. Return the trainer."""
        self.begin()
        self._around(trainer, "train_step", None)
        self._around(getattr(trainer, "checkpointer", None), "save", CHECKPOINT)
        self._around(getattr(trainer, "validator", None), "validate", EVALUATION)
        return trainer


def callback(job: str | None = None, log: object = None) -> Callback:
    """Return an object for `callbacks=[kair_capture.callback()]` of Hugging Face's or Lightning's Trainer.

    Call it after the trainer's module is imported. For torchtitan: `kair_capture.callback().attach(trainer)`. `log` is
    the module `wandb` or `mlflow`, which then shows the slowest rank and its cost (`log_to`).
    """
    bases = dict.fromkeys(
        base for name, of in _CLASSES if isinstance(base := getattr(sys.modules.get(name), of, None), type)
    )
    made = type("KairCallback", (Callback, *bases), {})
    return cast("Callback", made(job, log))


def samples_in(batch: object, depth: int = 0) -> int | None:
    """Return the number of samples: the first length of the first tensor; None without a tensor."""
    shape = getattr(batch, "shape", None)
    if isinstance(shape, Sequence) and not isinstance(shape, str):
        return int(shape[0]) if len(shape) else None
    parts: Iterable[object] = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    if depth < _DEEPEST:
        for part in parts:
            if (count := samples_in(part, depth + 1)) is not None:
                return count
    return None
