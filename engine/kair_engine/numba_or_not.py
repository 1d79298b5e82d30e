"""numba's compiler; where it is not installed functions stay as they are: good for tests, not for use."""

from functools import partial
from types import FunctionType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Text = npt.NDArray[np.uint8]


def _compiler() -> tuple[Any, Any, Any]:
    """Return the decorator, the one for functions that make no array, and the type of places in a text."""
    try:
        import numba
    except ImportError:
        as_it_is = lambda **_: lambda function: function  # noqa: E731
        return as_it_is, as_it_is, int
    # _nrt=False: no reference counts, which take half of a scan's time.
    # Places are unsigned: one that could be negative would be checked for being counted from the end.
    return numba.njit, partial(numba.njit, _nrt=False), numba.uintp


njit, njit_without_arrays, unsigned = _compiler()


@njit(nogil=True)
def _probe() -> int:
    return 0


# NUMBA_DISABLE_JIT leaves them as they are too.
IS_COMPILED: Final = not isinstance(_probe, FunctionType)


def _readers() -> tuple[Any, Any, Any]:
    """Return the functions that look at several signs at once: machine code looks at an array's items one by one."""
    if not IS_COMPILED:
        return (
            lambda text, at: int.from_bytes(bytes(text[at : at + 8]), "little", signed=True),
            lambda text, at, other, place: bytes(text[at : at + 32]) == bytes(other[place : place + 32]),
            lambda bits: (bits & -bits).bit_length() - 1,
        )
    from llvmlite import ir
    from numba.core import types
    from numba.extending import intrinsic

    def loaded(context: Any, builder: Any, text: tuple[Any, Any], at: Any, bits: int) -> Any:  # noqa: ANN401
        value, kind = text
        first = builder.gep(context.make_array(kind)(context, builder, value).data, [at])
        return builder.load(builder.bitcast(first, ir.IntType(bits).as_pointer()), align=1)

    def word_(_: object, text: Any, __: object) -> Any:  # noqa: ANN401
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ANN401
            return loaded(context, builder, (values[0], signature.args[0]), values[1], 64)

        return types.int64(text, types.intp), generate

    def same_block_(_: object, text: Any, __: object, other: Any, ___: object) -> Any:  # noqa: ANN401
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ANN401
            one = loaded(context, builder, (values[0], signature.args[0]), values[1], 256)
            another = loaded(context, builder, (values[2], signature.args[2]), values[3], 256)
            return builder.icmp_signed("==", one, another)

        return types.boolean(text, types.intp, other, types.intp), generate

    def lowest_(_: object, __: object) -> Any:  # noqa: ANN401
        def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:  # noqa: ANN401
            return builder.cttz(values[0], ir.Constant(ir.IntType(1), 1))

        return types.int64(types.int64), generate

    return intrinsic(word_), intrinsic(same_block_), intrinsic(lowest_)


word, same_block, lowest = _readers()
"""`word(text, at)`: the eight signs from `at` on, which have to be there, as one number. `same_block(text, at, other,
place)`: whether 32 signs are the same. `lowest(bits)`: which bit is the lowest of those that are set, of which there
is one."""


def as_signs(text: bytes) -> Any:  # noqa: ANN401
    """Return the text as its numbers: an array for machine code; Python's own else, which do not overflow."""
    return np.frombuffer(text, np.uint8) if IS_COMPILED else memoryview(text)
