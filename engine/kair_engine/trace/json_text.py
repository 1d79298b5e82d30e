"""JSON of any text, that of file names which are not UTF-8 too."""

import json
from typing import Any

import msgspec


def encode_json(value: Any) -> bytes:  # noqa: ANN401
    """`value` as JSON. Bytes of file names that are not UTF-8 (PEP 383) are written as `\\xff`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value, str_keys=True)))


def encode_ascii_json(value: Any) -> bytes:  # noqa: ANN401
    """The same in ASCII without DEL: nothing in it, shown on a terminal, moves the cursor or turns text around."""
    text = encode_json(value)
    if text.isascii() and b"\x7f" not in text:
        return text
    return json.dumps(msgspec.json.decode(text), separators=(",", ":")).replace("\x7f", "\\u007f").encode()


def _without_surrogates(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value
