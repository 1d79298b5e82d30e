"""Tells how long backward waits for DistributedDataParallel at its end, which happens out of Python's sight."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from torch import nn

from kair_capture.job.recorder import Recorder, clock
from kair_capture.ring.layout import Kind

_LEARNED: Final = 3
"""Backward passes after which it is known which parameters come last."""
_KEPT: Final = 3
"""How many of the last ones of each pass stay watched: 0.3 µs each."""


class GradientWaits:
    """From the last gradient to the end of backward, a thread does nothing but wait for the reductions."""

    def __init__(self) -> None:
        self._models: list[_Gradients] = []

    def watch(self, models: Sequence[nn.Module]) -> None:
        """From here on these models' gradients are seen; first all of them, later those that come last."""
        self._models += map(_Gradients, models)

    def backward_ended(self, recorder: Recorder, begin: int) -> None:
        """At the end of a backward pass, whose begin is given (CLOCK_MONOTONIC, ns)."""
        last = max((model.last for model in self._models), default=0)
        if last > begin:
            recorder.span(Kind.COLLECTIVE, "gradients", last, clock())
        for model in self._models:
            model.learn()


class _Gradients:
    """One model's."""

    def __init__(self, model: nn.Module) -> None:
        self.last = 0
        self._order: list[int] = []
        self._kept: set[int] = set()
        self._passes = 0
        self._handles: dict[int, Any] = {}
        for number, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                hook = partial(self._seen, number)
                handle = parameter.register_post_accumulate_grad_hook(hook)
                self._handles[number] = handle

    def learn(self) -> None:
        """After a backward pass: which parameters came last; the others are let go once that is known."""
        if not self._order:
            return
        self._passes += 1
        self._kept.update(self._order[-_KEPT:])
        self._order.clear()
        if self._passes == _LEARNED:
            for number in self._handles.keys() - self._kept:
                self._handles.pop(number).remove()

    def _seen(self, number: int, _: object) -> None:
        self.last = clock()
        if self._passes < _LEARNED:
            self._order.append(number)
