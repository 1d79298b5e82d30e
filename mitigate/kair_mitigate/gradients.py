"""Makes gradients of uneven batches exact: each backward pass starts from the rank's weight.

Ranks average their gradients. For mean losses over n_i samples, the gradient of the mean over all N is Σ n_i / N · g_i,
so rank i of W needs the weight W · n_i / N. The user's loss, optimizer, clipping, scaler and communication hooks stay
unchanged: only the root gradient of `backward` is scaled.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

_original: Callable[..., Any] = torch.autograd.backward
_weights: list[float] = []
_of_step: float | None = None
_is_used = False
_divides = WeakKeyDictionary[Any, bool]()
"""Whether a trainer's losses are sums divided by its label count, decided at its first loss."""
_NODES = 32
"""Nodes of the graph that are searched between a loss and its divisor."""


def weigh(weight: float | None, of_step: float | None = None, *, continues: bool = False) -> None:
    """Set the weight of all following backward passes; None and 1 leave them bit-identical.

    `of_step` is the mean weight of the step's batches, for a loss that is divided by the labels of all of them. If the
    previous batch is of the same step (`continues`) and no backward pass came since, batches are fetched ahead, as
    Hugging Face's Trainer fetches a step's: each weight is then used for one backward pass.
    """
    global _weights, _of_step, _is_used  # noqa: PLW0603 (autograd is one for the process)
    is_ahead = (continues or weight is None) and not _is_used and bool(_weights)
    _weights = [*(_weights if is_ahead else []), 1.0 if weight is None else weight]
    if weight is not None:
        _of_step = weight if of_step is None else of_step
    _is_used = _is_used and weight is None
    if torch.autograd.backward is _original:
        torch.autograd.backward = _weighed


def unpatch() -> None:
    """Restore PyTorch's own function."""
    _weights.clear()
    _divides.clear()
    torch.autograd.backward = _original


def without_weight(batch: Any) -> Any:  # noqa: ANN401 (whatever a data set holds)
    """Return a batch of weight 0 in the form that the caller needs.

    Hugging Face's Trainer, if it divides by the labels of a step's batches, would count those of this one: they are set
    to the ignored label, unless the trainer has no others to divide by.
    """
    trainer, _ = _trainer()
    if trainer is None or not _divides.get(trainer) or not isinstance(batch, dict):
        return batch
    if not _of_step and not trainer.args.average_tokens_across_devices:
        return batch
    names = [name for name in ("labels", "shift_labels") if isinstance(batch.get(name), torch.Tensor)]
    return {**batch, **{name: torch.full_like(batch[name], -100) for name in names}}


def _weighed(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    grad_tensors: Any = None,  # noqa: ANN401 (PyTorch's own signature)
    *args: Any,  # noqa: ANN401
    **more: Any,  # noqa: ANN401
) -> None:
    weight = _next_weight(tensors)
    if weight != 1.0:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        given = [None] * len(roots) if grad_tensors is None else grad_tensors
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        weighed = [
            (torch.ones_like(root) if gradient is None else gradient) * weight
            for root, gradient in zip(roots, given, strict=True)
        ]
        grad_tensors = weighed[0] if isinstance(tensors, torch.Tensor) else weighed
    _original(tensors, grad_tensors, *args, **more)


def _next_weight(roots: torch.Tensor | Sequence[torch.Tensor]) -> float:
    global _is_used  # noqa: PLW0603
    if not _weights:
        return 1.0
    _is_used = True
    weight = _weights.pop(0) if len(_weights) > 1 else _weights[0]
    trainer, count = _trainer()
    if trainer is None or count is None:
        return weight
    if trainer not in _divides:
        root = roots if isinstance(roots, torch.Tensor) else roots[0]
        _divides[trainer] = trainer.compute_loss_func is not None or _is_divided_by(root, count)
    if not _divides[trainer]:
        return weight
    # Divided by the labels of all ranks, gradients are exact already; divided by those of this rank's step, they need
    # the step's weight.
    return float(weight > 0) if trainer.args.average_tokens_across_devices else _of_step or 0.0


def _trainer() -> tuple[Any, Any]:
    """Return (calling Hugging Face Trainer, its label count for the step); None without one."""
    frame: FrameType | None = sys._getframe() if "transformers.trainer" in sys.modules else None
    while frame is not None:
        if frame.f_globals.get("__name__") == "transformers.trainer":
            trainer = frame.f_locals.get("self")
            if hasattr(trainer, "model_accepts_loss_kwargs"):
                return trainer, frame.f_locals.get("num_items_in_batch")
        frame = frame.f_back
    return None, None


def _is_divided_by(loss: torch.Tensor, count: Any) -> bool:  # noqa: ANN401 (a number, or a tensor of one)
    """Return whether a loss is divided by that number. Many models receive it but take a mean anyway.

    A compiled loss does not show its divisor; it is assumed to use the number.
    """
    nodes = [loss.grad_fn]
    for node in nodes:
        name = "" if node is None else node.name()
        other = getattr(node, "_saved_other", None) if name.startswith("DivBackward") else None
        if "Compiled" in name or (other is not None and _is_same(other, count)):
            return True
        if node is not None and len(nodes) < _NODES:
            nodes += [one for one, _ in node.next_functions]
    return False


def _is_same(divisor: torch.Tensor, count: Any) -> bool:  # noqa: ANN401
    if isinstance(count, torch.Tensor):  # by identity: another tensor may hold the same number
        return bool(divisor.data_ptr() == count.data_ptr())
    return bool(divisor == count)
