"""Exact gradients of uneven batches: the root gradient of each backward pass is multiplied by the rank's weight.

Ranks average their gradients. Of mean losses over n_i samples each the mean over all N is Σ n_i / N · g_i, so that rank
i of W has to count for W · n_i / N. The user's loss, optimizer, clipping, scaler and communication hooks stay as they
are: only what `backward` starts from is another number.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

_original: Callable[..., Any] = torch.autograd.backward
_weight: float | None = None
_weighed_by_trainer: bool | None = None


def weigh(weight: float | None) -> None:
    """The weight of every backward pass from here on; None, and 1, leave it as it is, bit for bit."""
    global _weight  # noqa: PLW0603 (autograd is one for the process)
    _weight = None if weight == 1.0 else weight
    if torch.autograd.backward is _original:
        torch.autograd.backward = _weighed


def unpatch() -> None:
    """Puts PyTorch's own function back."""
    global _weight, _weighed_by_trainer  # noqa: PLW0603
    _weight = _weighed_by_trainer = None
    if torch.autograd.backward is _weighed:
        torch.autograd.backward = _original


def _weighed(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    grad_tensors: Any = None,  # noqa: ANN401 (PyTorch's own signature)
    *args: Any,  # noqa: ANN401
    **more: Any,  # noqa: ANN401
) -> None:
    if _weight is not None and not _is_weighed_by_trainer():
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        given = [None] * len(roots) if grad_tensors is None else grad_tensors
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        weighed = [
            (torch.ones_like(root) if gradient is None else gradient) * _weight
            for root, gradient in zip(roots, given, strict=True)
        ]
        grad_tensors = weighed[0] if isinstance(tensors, torch.Tensor) else weighed
    _original(tensors, grad_tensors, *args, **more)


def _is_weighed_by_trainer() -> bool:
    """Whether a trainer divides by the tokens of all ranks itself, as Hugging Face's does where it averages them.

    It is looked for once, in what calls the first backward pass that has a weight.
    """
    global _weighed_by_trainer  # noqa: PLW0603
    if _weighed_by_trainer is None:
        _weighed_by_trainer = "transformers" in sys.modules and _averages_tokens(sys._getframe())
    return _weighed_by_trainer


def _averages_tokens(frame: FrameType | None) -> bool:
    while frame is not None:
        trainer = frame.f_locals.get("self") if frame.f_globals.get("__name__") == "transformers.trainer" else None
        if trainer is not None:
            counts = getattr(trainer, "model_accepts_loss_kwargs", False)
            return bool(counts and getattr(trainer.args, "average_tokens_across_devices", False))
        frame = frame.f_back
    return False
