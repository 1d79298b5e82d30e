"""The machine-readable document of every result: JSON, and the header and end of NDJSON."""

from typing import Any, Final

import msgspec

from kair_engine.trace.json_text import encode_json, plain_number
from kair_tui import __version__
from kair_tui.render.answer import Document
from kair_tui.render.text import escape_controls

SCHEMA_VERSION: Final = "5.0"


def envelope(answer: Document) -> dict[str, Any]:
    """Return the document's fields other than `data` and `warnings`."""
    return {
        "schema": f"kair.{answer.command}",
        "version": SCHEMA_VERSION,
        "kair": kair_version(),
        "job": None if answer.job is None else to_plain(answer.job),
        **({"notes": to_plain(answer.notes)} if answer.notes else {}),
    }


def data_of(answer: Document) -> dict[str, Any]:
    """Return the result as plain values without its warnings, which are separate."""
    plain: dict[str, Any] = to_plain(answer.result)
    plain.pop("warnings", None)
    return plain


def document(answer: Document, data: dict[str, Any]) -> str:
    """Return the JSON document, indented."""
    whole = {**envelope(answer), "data": data, "warnings": to_plain(answer.warnings)}
    return encode(whole, indent=2) + "\n"


def to_plain(value: Any) -> Any:  # noqa: ANN401
    """Return dataclasses and tuples as dicts and lists; number keys become strings, as JSON requires."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=plain_number)


def encode(value: Any, *, indent: int = 0) -> str:  # noqa: ANN401
    """Return `value` as JSON with all control characters escaped; NaN becomes null."""
    text = encode_json(value)
    if indent:
        text = msgspec.json.format(text, indent=indent)
    return escape_controls(text.decode())


def kair_version() -> str:
    """Return the version of this program."""
    return __version__
