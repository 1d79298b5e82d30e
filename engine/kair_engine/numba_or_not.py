"""numba's compiler; where it is not installed functions stay as they are: good for tests, not for use."""

from types import FunctionType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Text = npt.NDArray[np.uint8]


def _compiler() -> tuple[Any, Any]:
    """The decorator, and the type of places in a text."""
    try:
        import numba
    except ImportError:
        return (lambda **_: lambda function: function), int
    # A place that could be negative would be looked at for being counted from the end.
    return numba.njit, numba.uintp


njit, unsigned = _compiler()


@njit(nogil=True)
def _probe() -> int:
    return 0


# NUMBA_DISABLE_JIT leaves them as they are too.
IS_COMPILED: Final = not isinstance(_probe, FunctionType)


def as_signs(text: bytes) -> Any:  # noqa: ANN401
    """The text as its numbers: an array for machine code; Python's own else, which do not overflow."""
    return np.frombuffer(text, np.uint8) if IS_COMPILED else memoryview(text)
