"""Loads the compiled scan (`scan.c`), and lends it memory."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int, c_int8, c_int64, c_void_p
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_engine.readers.kineto.compiled import build, keys
from kair_engine.readers.kineto.compiled.scan_columns import COLUMNS

PIECE: Final = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("first", "length", "then", "child", "sibling", "children"),
            *("timeless", "opens", "closes", "says_all", "whole"),
        )
    ]
)
"""A piece of an event's text. `says_all`, of an event's last one: whether only numbers except ids identify a
collective."""
TOKEN_COLUMNS: Final = 5
"""Numbers of a row's name, category, process, thread, and of the track of the last three."""
_FOLLOWED: Final = 1 << 12
"""Keys of earlier shapes."""


class _Memory(Structure):
    """Pointers to arrays, which live as long as this; fields are named as in `scan.c`."""

    def _lend(self, **arrays: npt.NDArray[Any]) -> None:
        self.arrays = arrays
        for name, array in arrays.items():
            setattr(self, name, array.ctypes.data)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  (arrays of several types)
        return self.arrays[name]


class Keys(_Memory):
    """The keys of events and arguments that have a meaning."""

    _fields_ = (
        *((name, c_void_p) for name in ("texts", "begins", "fields", "of_length")),
        ("lengths", c_int64),
    )

    def __init__(self) -> None:
        super().__init__(lengths=keys.OF_LENGTH.shape[1])
        self._lend(texts=keys.TEXTS, begins=keys.BEGINS, fields=keys.FIELDS, of_length=keys.OF_LENGTH)


class Shapes(_Memory):
    """Known pieces of events."""

    _fields_ = (
        *((name, c_void_p) for name in ("texts", "pieces", "names", "expected")),
        *((name, c_int64) for name in ("text_room", "piece_room", "name_room", "text_size", "piece_count")),
    )

    def __init__(self, pieces: int, names: int, text: int) -> None:
        """Make room for so many pieces, names (a power of two), and bytes of both."""
        super().__init__(text_room=text, piece_room=pieces, name_room=names)
        self._lend(
            texts=np.empty(text, np.uint8),
            pieces=np.empty(pieces, PIECE),
            names=np.empty(names, np.int32),
            expected=np.empty(_FOLLOWED, np.int32),
        )


class Rows(_Memory):
    """Scanned events."""

    columns: int
    room: int
    count: int
    next: int
    """Where the next event begins."""
    _fields_ = (("columns", c_void_p), *((name, c_int64) for name in ("room", "count", "next")))

    def __init__(self, room: int) -> None:
        super().__init__(room=room)
        self._lend(columns=np.empty((COLUMNS, room), np.int64))


class Tokens(_Memory):
    """Different texts, and different tracks (category, process, thread), in the order of arrival.

    A text is kept with its quotes: a thread "7" is not thread 7.
    """

    _fields_ = (
        *((name, c_void_p) for name in ("slots", "texts", "ends", "track_slots", "tracks")),
        *((name, c_int64) for name in ("slot_room", "text_room", "room", "track_slot_room", "track_room")),
        *((name, c_int64) for name in ("count", "track_count")),
    )

    def __init__(self, texts: int, size: int) -> None:
        """Make room for so many texts (a power of two) of `size` bytes on average, and a fourth as many tracks."""
        slots, tracks, text_room = 4 * texts, texts // 4, size * texts
        super().__init__(
            slot_room=slots, text_room=text_room, room=texts, track_slot_room=texts, track_room=tracks, count=1
        )
        self._lend(
            slots=np.zeros(slots, np.int32),
            texts=np.empty(text_room, np.uint8),
            ends=np.zeros(texts, np.int64),
            track_slots=np.zeros(texts, np.int32),
            tracks=np.empty((tracks, 3), np.int32),
        )


@cache
def library() -> Any:  # noqa: ANN401  (its functions get their types here)
    """Return the compiled scan, or None if it was not compiled, or was compiled from another version of `scan.c`."""
    try:
        loaded = ctypes.CDLL(str(build.LIBRARY))
        is_current = loaded.kair_checksum() == ctypes.c_int(build.checksum()).value
    except (OSError, AttributeError):
        return None
    if not is_current:
        return None
    loaded.kair_scan.argtypes = (c_char_p, c_int64, POINTER(Rows), POINTER(Shapes), POINTER(Keys))
    loaded.kair_forget_shapes.argtypes = (POINTER(Shapes),)
    loaded.kair_forget_shapes.restype = None
    loaded.kair_find_tokens.argtypes = (c_char_p, c_void_p, c_int64, POINTER(Tokens), c_void_p)
    loaded.kair_find_tokens.restype = c_int64
    loaded.kair_pack.argtypes = (
        *(POINTER(Rows), c_int64, c_void_p, c_void_p, c_void_p, c_void_p),
        *(c_int8, c_int8, c_int64, c_void_p, POINTER(c_int)),
    )
    loaded.kair_pack.restype = c_int64
    return loaded
