"""Watches one model's calls without a hook on it: hooks are saved, copied and compiled with the model."""

from collections.abc import Callable
from typing import Any, Final

from torch import nn

from kair_capture.job.guarding import replace
from kair_capture.job.torch_hooks.guarding import is_compiling

_SLOT: Final = "_compiled_call_impl"
"""Where a module keeps what is called instead of itself (`Module.compile`); it is left out of copies and files."""

Before = Callable[[tuple[Any, ...], dict[str, Any]], None]


class WatchedCall:
    """A model's call with something before and after it."""

    def __init__(self, model: nn.Module, before: Before, after: Callable[[], None]) -> None:
        self._call: Callable[..., Any] = model._call_impl
        self._before, self._after = before, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """What the model itself does."""
        if is_compiling():
            return self._call(*args, **kwargs)
        self._before(args, kwargs)
        try:
            return self._call(*args, **kwargs)
        finally:
            self._after()

    def __reduce__(self) -> tuple[Any, ...]:
        """None, which is what the slot of a module holds that nobody watches."""
        return type(None), ()


def watch_calls(model: nn.Module, before: Before, after: Callable[[], None]) -> None:
    """From here on `before`, with what the model is given, and `after` are called around it.

    One that is compiled in place is left as it is.
    """
    # By its dictionary: a compiled model hands attributes on to the one it wraps.
    if _SLOT in vars(nn.Module) and vars(model).get(_SLOT) is None:
        vars(model)[_SLOT] = WatchedCall(model, before, after)


def let_replicas_go() -> None:
    """Keeps `DataParallel`'s replicas, which are made of a model's dictionary, from calling that model."""
    replace(nn.Module, "_replicate_for_data_parallel", _around_replicate)


def _around_replicate(original: Callable[..., Any]) -> Callable[..., Any]:
    def replicate(model: nn.Module) -> Any:  # noqa: ANN401
        replica = original(model)
        if isinstance(vars(replica).get(_SLOT), WatchedCall):
            del vars(replica)[_SLOT]
        return replica

    return replicate
