"""Encodes JSON of any text, including file names that are not UTF-8."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kair_engine.trace.files import read_kept

_Kept = TypeVar("_Kept")


def plain_number(value: Any) -> Any:  # noqa: ANN401
    """Return a number of NumPy, which type checkers take for a float, as one of Python. Raises TypeError for others."""
    if isinstance(value, float):
        return float(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"encoding objects of type {type(value).__name__} is unsupported")


_ENCODER = msgspec.json.Encoder(enc_hook=plain_number)


def encode_json(value: Any) -> bytes:  # noqa: ANN401
    """Return `value` as JSON. Bytes of file names that are not UTF-8 (PEP 383) are written as `\\xff`."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=plain_number)
        return msgspec.json.encode(_without_surrogates(plain))


def kept_json(path: Path, of: type[_Kept], body: Callable[[bytes], bytes] = bytes) -> _Kept | None:
    """Return the content of a file that Kair keeps; None if it is missing, or it is damaged.

    `body` extracts the JSON from the file's content, and raises ValueError if that is damaged.
    """
    try:
        return msgspec.json.decode(body(read_kept(path)), type=of)
    except (OSError, ValueError, RecursionError):
        return None


def encode_ascii_lines(values: Sequence[Any]) -> bytes:
    """Return one line of JSON per value, without a final newline, in ASCII without DEL.

    So nothing in it can move a terminal's cursor or reverse text.
    """
    try:
        text = _ENCODER.encode_lines(values)[:-1]
    except UnicodeEncodeError:
        text = b"\n".join(map(encode_json, values))
    if text.isascii() and b"\x7f" not in text:
        return text
    return b"\n".join(map(_escaped, text.split(b"\n")))


def _escaped(text: bytes) -> bytes:
    return json.dumps(msgspec.json.decode(text), separators=(",", ":")).replace("\x7f", "\\u007f").encode()


def _without_surrogates(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value
