"""The JSON Schema (2020-12) of every command's document, derived from the result types."""

from typing import Any, get_type_hints

import msgspec

from kair_engine.causes import CAUSES
from kair_engine.errors import UsageError
from kair_engine.trace.model import Notice
from kair_tui.cli.registry import COMMANDS, Entry, find
from kair_tui.render.answer import JobInfo
from kair_tui.render.document import SCHEMA_VERSION, encode

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def known_schemas() -> tuple[str, ...]:
    """The commands whose answer has a schema."""
    return tuple(entry.name for entry in COMMANDS if entry.has_result)


def schema(name: str) -> str:
    """The schema of the document that `kair <name> --json` prints. Raises UsageError for an unknown name."""
    entry = find(name.removeprefix("kair."))
    if entry is None or not entry.has_result:
        raise UsageError(f"no schema {name!r}", f"there are: {', '.join(known_schemas())}")
    return encode(schema_of(entry), indent=2) + "\n"


def schema_of(entry: Entry) -> dict[str, Any]:
    """The document's schema as a plain object."""
    result: type[Any] = get_type_hints(entry.load())["return"]
    (data, job, notice), definitions = msgspec.json.schema_components(
        (result, JobInfo, Notice), ref_template="#/$defs/{name}"
    )
    _leave_out_warnings(definitions[result.__name__])
    _name_causes(definitions)
    return {
        "$schema": DIALECT,
        "$id": f"urn:kair:schema:{entry.name}:{SCHEMA_VERSION}",
        "title": f"kair {entry.name} --json",
        "description": entry.summary,
        "type": "object",
        "required": ["schema", "version", "kair", "job", "data", "warnings"],
        "properties": {
            "schema": {"const": f"kair.{entry.name}"},
            "version": {
                "type": "string",
                "pattern": f"^{SCHEMA_VERSION.split('.', maxsplit=1)[0]}\\.[0-9]+$",
            },
            "kair": {"type": "string", "description": "The version of Kair that wrote the document."},
            "job": job if entry.needs == "trace" else {"type": "null"},
            "data": data,
            "warnings": {"type": "array", "items": notice},
        },
        "$defs": definitions,
    }


def _name_causes(definitions: dict[str, Any]) -> None:
    """A cause is any text to the type checker: the table of causes tells which there are."""
    for definition in definitions.values():
        cause = definition.get("properties", {}).get("cause", {})
        for one in cause.get("anyOf", [cause]):
            if one.get("type") == "string":
                one["enum"] = [*CAUSES]


def _leave_out_warnings(definition: dict[str, Any]) -> None:
    """A result's warnings stand beside its data in the document."""
    definition["properties"].pop("warnings", None)
    definition["required"] = [name for name in definition.get("required", ()) if name != "warnings"]
