"""JSON of any text, that of file names which are not UTF-8 too."""

from typing import Any

import msgspec


def encode_json(value: Any) -> bytes:  # noqa: ANN401
    """`value` as JSON. Bytes of file names that are not UTF-8 (PEP 383) are written as `\\xff`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value, str_keys=True)))


def _without_surrogates(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value
