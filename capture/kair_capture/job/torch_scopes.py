"""Finds forward, backward and optimizer in a job without marks.

The models that a job calls are found among all objects of the process, and their calls are watched without hooks on
them, because hooks are saved, copied and compiled with the model. DistributedDataParallel's wait at the end of backward
is measured from the last gradient. Hooks stay out of what torch.compile traces.
"""

import gc
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from kair_capture.delays import Place
from kair_capture.job.device_time import DeviceTime
from kair_capture.job.hooks import around, guard, replace
from kair_capture.job.recorder import Recorder, clock
from kair_capture.job.session import Session, StepTracker, current
from kair_capture.ring import Kind

_MOST_OPTIMIZERS: Final = 8
"""Beyond these the search ends: a job that creates an optimizer in every step would pay for it each time."""


class _Open(threading.local):
    """State of each thread."""

    forwards = 0
    backwards = 0


class ScopeFinder:
    """The hooks. The job's models are searched for when an optimizer first runs."""

    def __init__(self) -> None:
        self._open = _Open()
        self._optimizer: int | None = None
        self._optimizer_began = 0
        self._optimizer_calls = 0
        self._known_optimizers: set[int] = set()
        self._known_models: WeakSet[nn.Module] = WeakSet()
        self._forward_seen = False
        self._phase_ended = 0
        """End of the last phase of this step: if no model was found, forward lasts from there to backward."""
        self._waits = GradientWaits()

    def install(self) -> None:
        """Register the hooks of this process, which stay."""
        register_optimizer_step_pre_hook(self._before_optimizer)
        register_optimizer_step_post_hook(self._after_optimizer)
        let_replicas_go()
        replace(DistributedDataParallel, "__init__", _noting)
        replace(torch.autograd, "backward", self._around_backward)
        replace(torch.amp.GradScaler, "step", self._around_scaler)

    def input_ended(self) -> None:
        """Note that the loop has its data: forward begins here at the earliest."""
        self._phase_ended = clock()

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return around(self._before_backward, self._after_backward, unless=is_compiling, begins="torch")(original)

    def _around_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        skipped = guard(self._skipped, unless=is_compiling)

        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            before = self._optimizer_calls
            result = original(scaler, optimizer, *args, **kwargs)
            if self._optimizer_calls == before:
                skipped(id(optimizer))
            return result

        return step

    def _skipped(self, session: Session, optimizer: int) -> None:
        session.steps.optimizer_ran(optimizer, skipped=True)
        self._phase_ended, self._forward_seen = clock(), False

    def _before_backward(self, session: Session, *_: object) -> None:
        open_here, steps = self._open, session.steps
        open_here.backwards += 1
        # Nested backward passes are activation checkpointing's.
        if open_here.backwards > 1:
            return
        if steps.over_since is not None:
            steps.phase_begins()
        steps.backwards += 1
        if not self._forward_seen and self._phase_ended and not session.recorder.shortest_ns:
            session.recorder.scope("forward", self._phase_ended)
        self._forward_seen = False
        if session.delays is not None:
            hold_up(session, Place.BEFORE_BACKWARD)
        steps.in_backward = True

    def _after_backward(self, session: Session, begin: int) -> None:
        open_here, steps = self._open, session.steps
        open_here.backwards = left = max(0, open_here.backwards - 1)
        if left:
            return
        steps.in_backward = False
        if steps.device is not None:
            steps.device.backward_is_over()
        self._waits.backward_ended(session.recorder, begin)
        session.recorder.part(Kind.SCOPE, "backward", begin)
        self._phase_ended = clock()

    def _before_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        if not is_compiling() and (session := current.session or current.begin(framework="torch")) is not None:
            try:
                self._begin_optimizer(session, optimizer)
            except Exception as error:  # whatever it is, training continues
                current.give_up(error)

    def _begin_optimizer(self, session: Session, optimizer: Optimizer) -> None:
        self._optimizer_calls += 1
        number, steps = id(optimizer), session.steps
        # Sharded optimizers nest and both call the hook; the outer one counts.
        if self._optimizer is not None and self._optimizer != number:
            return
        if steps.over_since is not None:
            steps.phase_begins()
        if number not in self._known_optimizers and len(self._known_optimizers) < _MOST_OPTIMIZERS:
            self._known_optimizers.add(number)
            self._find_models(optimizer)
            self._watch_device(steps, optimizer)
        if session.delays is not None:
            hold_up(session, Place.BEFORE_OPTIMIZER)
        self._optimizer, self._optimizer_began = number, clock()

    def _after_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        if is_compiling():
            return
        session, number = current.session, id(optimizer)
        if session is None or self._optimizer != number:
            return
        try:
            self._optimizer = None
            session.recorder.part(Kind.SCOPE, "optimizer", self._optimizer_began)
            session.steps.optimizer_ran(number)
            self._phase_ended, self._forward_seen = clock(), False
        except Exception as error:  # whatever it is, training continues
            current.give_up(error)

    def _watch_device(self, steps: StepTracker, optimizer: Optimizer) -> None:
        """Measure the device's time by events, if the parameters are on one."""
        if steps.device is None and is_on_gpu(optimizer):
            event = partial(torch.cuda.Event, enable_timing=True)
            steps.device = DeviceTime(event, torch.cuda.is_current_stream_capturing)
            self._waits.at_gradient = steps.device.gradient_is_there

    def _find_models(self, optimizer: Optimizer) -> None:
        models = find_roots(optimizer)
        for model in models.callable:
            if model not in self._known_models:
                watch_calls(model, self._before_forward, self._after_forward)
        self._waits.watch([model for model in models.data_parallel if model not in self._known_models])
        self._known_models.update((*models.callable, *models.data_parallel))

    def _before_forward(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        open_here, steps = self._open, session.steps
        open_here.forwards += 1
        if open_here.forwards > 1:
            return
        if session.delays is not None:
            hold_up(session, Place.BEFORE_FORWARD)
            hold_up(session, Place.EACH_MICRO_BATCH)
        if steps.sampled and torch.is_grad_enabled():
            session.given(bytes_in((args, kwargs)))

    def _after_forward(self, session: Session, begin: int) -> None:
        open_here = self._open
        open_here.forwards = left = max(0, open_here.forwards - 1)
        if left:
            return
        if torch.is_grad_enabled():
            session.recorder.scope("forward", begin)
            self._forward_seen = True
        else:
            session.recorder.scope("evaluation", begin)


def hold_up(session: Session, place: Place) -> None:
    """Delay the step for `kair confirm` if due: only in training, in the training thread, and outside of graphs."""
    is_in_graph = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if session.delays is not None and session.steps.trains_here() and torch.is_grad_enabled() and not is_in_graph:
        session.delays.insert(place)


def is_on_gpu(optimizer: Optimizer) -> bool:
    """Return whether some of its parameters are on a GPU."""
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    return torch.cuda.is_initialized() and any(one.is_cuda for one in parameters)


@dataclass(frozen=True)
class Models:
    """Models of one optimizer."""

    callable: tuple[nn.Module, ...]
    """Those on which hooks see forward without changing anything."""
    data_parallel: tuple[nn.Module, ...]
    """Those whose gradients DistributedDataParallel reduces."""


def find_roots(optimizer: Optimizer) -> Models:
    """Return the outermost modules with some of the optimizer's parameters. Takes 0.1 s in a process of 10⁶ objects."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    modules = _modules()
    inner = {id(child) for module in modules for child in module._modules.values()}
    roots = [module for module in modules if id(module) not in inner and _has_any(module, wanted)]
    parallel = [module for module in modules if issubclass(type(module), DistributedDataParallel)]
    compiles = _compiles()
    return Models(
        tuple(root for root in roots if not compiles or _stays_outside(root)),
        () if compiles else tuple(module for module in parallel if _has_any(module, wanted)),
    )


_replicas: Final[WeakSet[nn.Module]] = WeakSet()
"""DistributedDataParallel's models: after gc.freeze(), which loops call, earlier objects are not listed elsewhere."""


def _noting(original: Callable[..., None]) -> Callable[..., None]:
    def init(model: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        original(model, *args, **kwargs)
        _replicas.add(model)

    return init


def _modules() -> list[nn.Module]:
    """Return all modules. By type, because isinstance asks the object, and a lazy one would act on it."""
    objects = gc.get_objects()
    types = {kind for kind in set(map(type, objects)) if issubclass(kind, nn.Module)}
    found = {id(one): one for one in objects if type(one) in types}
    if gc.get_freeze_count():
        found |= {id(one): one for replica in list(_replicas) for one in replica.modules()}
    return list(found.values())


def _has_any(module: nn.Module, wanted: set[int]) -> bool:
    return any(id(parameter) in wanted for parameter in module.parameters())


def _compiles() -> bool:
    """Return whether torch.compile has traced anything: a new hook on traced code would make it trace again."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return bool(counters and counters["frames"])


def _stays_outside(root: nn.Module) -> bool:
    """Return whether a hook on this module is called outside of compiled code."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    optimized = getattr(frames, "OptimizedModule", None)
    return optimized is not None and issubclass(type(root), optimized)


_SLOT: Final = "_compiled_call_impl"
"""Attribute of a module with a replacement for its call (`Module.compile`); copies and files leave it out."""


class WatchedCall(partial[Any]):
    """A model's call with hooks before and after it. It is a `partial`, whose call needs no Python frame."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as None, the value for a module that is not watched."""
        return type(None), ()


def watch_calls(
    model: nn.Module,
    before: Callable[[Session, tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[Session, int], None],
) -> None:
    """Call `before`, with the model's arguments, and `after`, with its begin, around the model from here on.

    A model that is compiled in place is left alone.
    """
    # By its dictionary: a compiled model forwards attributes to the one it wraps.
    if _SLOT in vars(nn.Module) and vars(model).get(_SLOT) is None:
        vars(model)[_SLOT] = WatchedCall(
            around(before, after, unless=is_compiling, is_part=torch.is_grad_enabled)(model._call_impl)
        )


def let_replicas_go() -> None:
    """Keep `DataParallel`'s replicas, which copy a model's dictionary, from calling that model."""
    replace(nn.Module, "_replicate_for_data_parallel", _around_replicate)


def _around_replicate(original: Callable[..., Any]) -> Callable[..., Any]:
    def replicate(model: nn.Module) -> Any:  # noqa: ANN401
        replica = original(model)
        if isinstance(vars(replica).get(_SLOT), WatchedCall):
            del vars(replica)[_SLOT]
        return replica

    return replicate


_LEARNED: Final = 8
"""Backward passes after which the last parameters are known: those that were last in any of them stay watched."""


class GradientWaits:
    """Waits from the last gradient to the end of backward, in which a thread only waits for the reductions."""

    def __init__(self) -> None:
        self._models: list[_Gradients] = []
        self.at_gradient: Callable[[], None] | None = None
        """Called at the last ones."""

    def watch(self, models: Sequence[nn.Module]) -> None:
        """Watch these models' gradients: first all, later the last ones."""
        self._models += [_Gradients(self, model) for model in models]

    def backward_ended(self, recorder: Recorder, begin: int) -> None:
        """Record the wait at the end of a backward pass that began at `begin` (CLOCK_MONOTONIC, ns)."""
        last = 0
        for model in self._models:
            last = max(last, model.last)
        if last > begin:
            recorder.wait("gradients", last)
        for model in self._models:
            if model.is_learning:
                model.learn()


class _Gradients:
    """Gradients of one model."""

    def __init__(self, waits: GradientWaits, model: nn.Module) -> None:
        self.last, self._waits = 0, waits
        self._order: list[int] = []
        self._kept: set[int] = set()
        self._passes, self.is_learning = 0, True
        self._handles: dict[int, Any] = {}
        for number, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                hook = partial(self._seen, number)
                handle = parameter.register_post_accumulate_grad_hook(hook)
                self._handles[number] = handle

    def learn(self) -> None:
        """Learn from a backward pass which parameters came last; the others are dropped once that is known."""
        if not self._order:
            return
        self._passes += 1
        self._kept.add(self._order[-1])
        self._order.clear()
        if self._passes == _LEARNED:
            self.is_learning = False
            for number in self._handles.keys() - self._kept:
                self._handles.pop(number).remove()

    def _seen(self, number: int, _: object) -> None:
        self.last = clock()
        if self.is_learning:
            self._order.append(number)
        elif self._waits.at_gradient is not None:
            self._waits.at_gradient()


_MOST: Final = 256
"""Most values that are examined: a batch is a few tensors."""


def bytes_in(value: object) -> int:
    """Return the bytes of all tensors in nested lists, tuples and mappings; 0 without any, or with too many values."""
    found, waiting, seen = 0, [value], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if isinstance(one, Tensor):
            found += one.numel() * one.element_size()
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        if seen + len(waiting) > _MOST:
            return 0
    return found


is_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
"""Whether torch.compile traces the caller; called five times per step, in half of `is_compiling`'s time."""
