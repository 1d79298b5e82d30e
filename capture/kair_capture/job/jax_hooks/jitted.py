"""Stands for what `jax.jit` gives, and tells of its calls; in all else it is that function."""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

from kair_capture.job.compiled_hooks.training_calls import TracedFunction, TrainingCalls


class Jitted:
    """A compiled function. JAX's own cannot be watched: its calls never leave C++."""

    def __init__(self, function: Any, calls: TrainingCalls) -> None:  # noqa: ANN401  # JAX's, untyped here
        functools.update_wrapper(self, function)
        self._kairs_calls, self._kairs_state = calls, TracedFunction()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """What the function gives."""
        return self._kairs_calls.call(self._kairs_state, self.__wrapped__, args, kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        # Before __wrapped__ is there (while it is unpickled), this would ask for itself for ever.
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401
        """A method, where it is a class' attribute."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> tuple[Any, ...]:
        """As the function itself: what is copied or saved is not watched."""
        return _itself, (self.__wrapped__,)


def watching(jit: Callable[..., Any], calls: TrainingCalls) -> Callable[..., Any]:
    """`jax.jit`, or one like it, whose functions are watched; also as `jit(static_argnums=0)`, a decorator."""

    def watched(function: Any) -> Any:  # noqa: ANN401
        return Jitted(function, calls) if hasattr(function, "lower") else function

    def jitting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        made = jit(*args, **kwargs)
        if args or "fun" in kwargs:
            return watched(made)
        return lambda function: watched(made(function))

    return jitting


def _itself(function: Any) -> Any:  # noqa: ANN401
    return function
