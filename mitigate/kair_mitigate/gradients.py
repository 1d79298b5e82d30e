"""Exact gradients of uneven batches: the root gradient of each backward pass is multiplied by the rank's weight.

Ranks average their gradients. Of mean losses over n_i samples each the mean over all N is Σ n_i / N · g_i, so that rank
i of W has to count for W · n_i / N. The user's loss, optimizer, clipping, scaler and communication hooks stay as they
are: only what `backward` starts from is another number.
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
"""Whether a trainer's losses are sums over the number of labels that it counts, by its first one."""
_NODES = 32
"""Between a loss and the number that it is divided by there are fewer nodes of the graph than this."""


def weigh(weight: float | None, of_step: float | None = None, *, continues: bool = False) -> None:
    """Set the weight of every backward pass from here on; None, and 1, leave it as it is, bit for bit.

    `of_step` is the mean weight of the step's batches, for a loss that is divided by what all of these have. Where the
    batch before was of the same step (`continues`) and no backward pass came since, batches are taken ahead, as Hugging
    Face's Trainer takes a step's: each weight then holds for one backward pass.
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
    """Put PyTorch's own function back."""
    _weights.clear()
    _divides.clear()
    torch.autograd.backward = _original


def without_weight(batch: Any) -> Any:  # noqa: ANN401 (whatever a data set holds)
    """Return a batch that is to count for nothing, as the caller takes it.

    Hugging Face's Trainer, where it divides by the labels of a step's batches, would count this one's: they are ignored
    ones then, unless it has no others to divide by.
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
    # Divided by the labels of all ranks, gradients are exact as they are; by those of this rank's step, the step's
    # weight makes them so.
    return float(weight > 0) if trainer.args.average_tokens_across_devices else _of_step or 0.0


def _trainer() -> tuple[Any, Any]:
    """(Hugging Face's Trainer that calls this, how many labels it counted for the step); None where there is none."""
    frame: FrameType | None = sys._getframe() if "transformers.trainer" in sys.modules else None
    while frame is not None:
        if frame.f_globals.get("__name__") == "transformers.trainer":
            trainer = frame.f_locals.get("self")
            if hasattr(trainer, "model_accepts_loss_kwargs"):
                return trainer, frame.f_locals.get("num_items_in_batch")
        frame = frame.f_back
    return None, None


def _is_divided_by(loss: torch.Tensor, count: Any) -> bool:  # noqa: ANN401 (a number, or a tensor of one)
    """Whether a loss is a sum over that number. Many models are given it, and take a mean all the same.

    A compiled loss does not show it, and is believed to use what it is given.
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
    if isinstance(count, torch.Tensor):  # another tensor of the same number is none: there may be 1 label
        return bool(divisor.data_ptr() == count.data_ptr())
    return bool(divisor == count)
