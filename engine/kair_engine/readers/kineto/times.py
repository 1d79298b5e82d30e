"""Microseconds as they stand in a trace's text, to whole nanoseconds, exactly."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

INVALID: Final = np.iinfo(np.int64).min
"""Stands for a text that is no time: not a number, or beyond any clock."""
MAX_DURATION_NS: Final = 10**18
"""31 years; begin and end of any operation then fit int64."""
_LIMIT: Final = 4 * 10**18
_COMMA: Final = ord(",")
_POINT: Final = ord(".")


def nanoseconds(texts: Sequence[object]) -> npt.NDArray[np.int64]:
    """int64 nanoseconds of decimal texts (buffers) in microseconds; finer fractions round half to even.

    What cannot be read, or lies 127 years or more from zero, is INVALID.
    """
    count = len(texts)
    if not count:
        return np.empty(0, np.int64)
    blob = b",".join(cast("Sequence[bytes]", texts)) + b","
    try:
        whole = _integers(blob, count)
        return _unscaled(_decimal(blob, count)) if whole is None else whole
    except (pa.ArrowInvalid, ValueError):
        return np.array([exact_nanoseconds(bytes(cast("bytes", text))) for text in texts], np.int64)


def _integers(blob: bytes, count: int) -> npt.NDArray[np.int64] | None:
    """Times that all have no fraction, or all one of three digits, as profilers write them: a third of the work."""
    signs = np.frombuffer(blob, np.uint8)
    points = np.flatnonzero(signs == _POINT)
    if len(points) and not np.array_equal(points + 4, np.flatnonzero(signs == _COMMA)):
        return None
    # Whatever else than whole numbers apart is read with care. (What is beyond 64 bits becomes the largest of them.)
    if blob.translate(None, b"0123456789,.") or blob.startswith(b",") or b",," in blob:
        return None
    values: npt.NDArray[np.int64] = np.fromstring(blob.replace(b".", b""), np.int64, sep=",")
    if len(values) != count:
        raise ValueError("a time holds a comma")
    limit = _LIMIT if len(points) else _LIMIT // 1000
    within = (values > -limit) & (values < limit)
    return np.where(within, values if len(points) else values * 1000, INVALID)


def _texts(blob: bytes, count: int) -> pa.Array:
    """The texts between the commas of `blob`."""
    ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == _COMMA)
    if len(ends) != count:
        raise ValueError("a time holds a comma")
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends + 1
    import pyarrow.compute as pc  # 35 ms, for times that few profilers write

    # Arrow's strings lie end to end, so each still holds its comma.
    texts = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(blob))
    return pc.ascii_rtrim(texts, ",")


def _decimal(blob: bytes, count: int) -> pa.Array:
    import pyarrow.compute as pc

    texts = _texts(blob, count)
    try:
        return texts.cast(pa.decimal128(38, 3))
    except pa.ArrowInvalid:
        return pc.round(texts.cast(pa.decimal128(38, 12)), 3, "half_to_even").cast(pa.decimal128(38, 3))


def _unscaled(decimals: pa.Array) -> npt.NDArray[np.int64]:
    """The unscaled values, which at scale 3 are nanoseconds: the low halves, where the high ones agree."""
    halves = np.frombuffer(decimals.buffers()[1], np.int64)[: 2 * len(decimals)].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    fits = (high == low >> 63) & (low > -_LIMIT) & (low < _LIMIT)
    return np.where(fits, low, INVALID)


def exact_nanoseconds(text: bytes) -> int:
    """The slow, exact path for one text, quoted or not."""
    try:
        value = Decimal(text.decode("ascii").strip().strip('"').strip())
        if not value.is_finite() or value.adjusted() > 18:
            return INVALID
        if value.adjusted() < -9:
            return 0
        result = int((value * 1000).to_integral_value())
    except (InvalidOperation, UnicodeDecodeError):
        return INVALID
    return result if -_LIMIT < result < _LIMIT else INVALID
