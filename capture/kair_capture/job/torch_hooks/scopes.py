"""Finds forward, backward and optimizer in a job that says nothing about them."""

import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from kair_capture.job.guarding import replace
from kair_capture.job.recorder import clock
from kair_capture.job.session import Session
from kair_capture.job.torch_hooks.gradients import GradientWaits
from kair_capture.job.torch_hooks.guarding import beginning, guarded, is_compiling
from kair_capture.job.torch_hooks.inputs import bytes_in
from kair_capture.job.torch_hooks.model_calls import let_replicas_go, watch_calls
from kair_capture.job.torch_hooks.roots import find_roots

_MOST_OPTIMIZERS: Final = 8
"""Past these nothing is looked for: a job that makes an optimizer in every step would pay for it in every step."""


class _Open(threading.local):
    """What is under way on each thread."""

    forwards = 0
    forward_began = 0
    backwards = 0


class ScopeFinder:
    """The hooks. The models that the job calls are looked for when an optimizer runs first."""

    def __init__(self) -> None:
        self._open = _Open()
        self._optimizer: int | None = None
        self._optimizer_began = 0
        self._optimizer_calls = 0
        self._known_optimizers: set[int] = set()
        self._known_models: WeakSet[nn.Module] = WeakSet()
        self._forward_seen = False
        self._phase_ended = 0
        """When the last phase of this step was over: from there to backward is forward, where no model was found."""
        self._waits = GradientWaits()

    def install(self) -> None:
        """Registers the hooks of this process, which stay."""
        register_optimizer_step_pre_hook(beginning(self._before_optimizer))
        register_optimizer_step_post_hook(guarded(self._after_optimizer))
        let_replicas_go()
        replace(torch.autograd, "backward", self._around_backward)
        replace(torch.amp.GradScaler, "step", self._around_scaler)

    def input_ended(self) -> None:
        """The loop has its data: forward begins here at the earliest."""
        self._phase_ended = clock()

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        began, ended = beginning(self._before_backward), guarded(self._after_backward)

        def backward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if is_compiling():
                return original(*args, **kwargs)
            began()
            begin = clock()
            try:
                return original(*args, **kwargs)
            finally:
                ended(begin)

        return backward

    def _around_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        skipped = guarded(self._skipped)

        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            before = self._optimizer_calls
            result = original(scaler, optimizer, *args, **kwargs)
            if self._optimizer_calls == before:
                skipped(id(optimizer))
            return result

        return step

    def _skipped(self, session: Session, optimizer: int) -> None:
        session.steps.optimizer_ran(optimizer, skipped=True)
        self._step_is_over()

    def _before_backward(self, session: Session) -> None:
        self._open.backwards += 1
        # One within another is activation checkpointing's.
        if self._open.backwards > 1:
            return
        session.steps.phase_begins()
        session.steps.backwards += 1
        if not self._forward_seen and self._phase_ended:
            session.recorder.scope("forward", self._phase_ended)
        self._forward_seen = False
        session.steps.in_backward = True

    def _after_backward(self, session: Session, begin: int) -> None:
        self._open.backwards = max(0, self._open.backwards - 1)
        if self._open.backwards:
            return
        session.steps.in_backward = False
        self._waits.backward_ended(session.recorder, begin)
        session.recorder.scope("backward", begin)
        self._phase_ended = clock()

    def _before_optimizer(self, session: Session, optimizer: Optimizer, *_: object) -> None:
        self._optimizer_calls += 1
        # One within another is sharded: both are told, the outer one is meant.
        if self._optimizer is not None and self._optimizer != id(optimizer):
            return
        session.steps.phase_begins()
        if id(optimizer) not in self._known_optimizers and len(self._known_optimizers) < _MOST_OPTIMIZERS:
            self._known_optimizers.add(id(optimizer))
            self._find_models(optimizer)
        self._optimizer, self._optimizer_began = id(optimizer), clock()

    def _after_optimizer(self, session: Session, optimizer: Optimizer, *_: object) -> None:
        if self._optimizer != id(optimizer):
            return
        self._optimizer = None
        session.recorder.scope("optimizer", self._optimizer_began)
        session.steps.optimizer_ran(id(optimizer))
        self._step_is_over()

    def _step_is_over(self) -> None:
        self._phase_ended, self._forward_seen = clock(), False

    def _find_models(self, optimizer: Optimizer) -> None:
        models = find_roots(optimizer)
        for model in models.callable:
            if model not in self._known_models:
                watch_calls(model, guarded(self._before_forward), guarded(self._after_forward))
        self._waits.watch([model for model in models.data_parallel if model not in self._known_models])
        self._known_models.update((*models.callable, *models.data_parallel))

    def _before_forward(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._open.forwards += 1
        if self._open.forwards == 1:
            session.steps.phase_begins()
            self._open.forward_began = clock()
            if session.steps.sampled and torch.is_grad_enabled():
                session.given(bytes_in((args, kwargs)))

    def _after_forward(self, session: Session) -> None:
        self._open.forwards = max(0, self._open.forwards - 1)
        if self._open.forwards:
            return
        if torch.is_grad_enabled():
            session.recorder.scope("forward", self._open.forward_began)
            self._forward_seen = True
        else:
            session.recorder.scope("evaluation", self._open.forward_began)
