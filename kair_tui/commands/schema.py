"""`kair schema`: prints the JSON Schema (2020-12) of a command's document, derived from its result type."""

import json
from typing import Annotated, Any

from kair_engine.causes import CAUSES
from kair_engine.errors import UsageError
from kair_tui.cli.options import Argument
from kair_tui.cli.registry import COMMANDS, Entry, find

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def names(beginning: str = "") -> list[str]:
    """Return the commands that have a schema and whose name starts with `beginning`."""
    return [entry.name for entry in COMMANDS if entry.has_result and entry.name.startswith(beginning)]


def run(name: Annotated[str | None, Argument("A command that answers with --json.", offers=names)] = None) -> str:
    """Return the schema of `name`; without a name, the names to choose from, a line each.

    Raises UsageError for an unknown name.
    """
    from kair_tui.render.document import encode

    if name is None:
        return "".join(f"{known}\n" for known in names())
    entry = find(name.removeprefix("kair."))
    if entry is None or not entry.has_result:
        raise UsageError(f"no schema {name!r}", f"there are: {', '.join(names())}")
    return encode(schema_of(entry), indent=2) + "\n"


def schema_of(entry: Entry) -> dict[str, Any]:
    """Return the document's schema as a plain object."""
    from msgspec.json import schema_components

    from kair.app.question import Note
    from kair_tui.commands.field_words import describe, records_in
    from kair_tui.render.answer import JobInfo
    from kair_tui.render.document import SCHEMA_VERSION
    from kair_tui.render.warnings import WarningInWords

    result: type[Any] = entry.result_type()
    (data, job, warning, note), definitions = schema_components(
        (result, JobInfo, WarningInWords, Note), ref_template="#/$defs/{name}"
    )
    describe(definitions, records_in(result) | {JobInfo, WarningInWords, Note})
    _leave_out_warnings(definitions, result.__name__)
    _name_causes(definitions)
    _tell_kinds(definitions)
    _require_all(definitions)
    return {
        "$schema": DIALECT,
        "$id": f"urn:kair:schema:{entry.name}:{SCHEMA_VERSION}",
        "title": f"kair {entry.name} --json",
        "description": entry.summary,
        "type": "object",
        "required": ["schema", "version", "kair", "job", "data", "warnings"],
        "properties": {
            "schema": {"const": f"kair.{entry.name}", "description": "Which command answered."},
            "version": {
                "type": "string",
                "description": "Of the document; the first number changes when a field goes or means something else.",
                "pattern": f"^{SCHEMA_VERSION.split('.', maxsplit=1)[0]}\\.[0-9]+$",
            },
            "kair": {"type": "string", "description": "The version of Kair that wrote the document."},
            "job": {
                **_about(entry, job),
                "description": "What the answer is about.",
            },
            "notes": {
                "type": "array",
                "items": note,
                "description": "What people wrote of the job on the full screen; missing where nobody did.",
            },
            "data": {**data, "description": _answer_with(entry.load_view().main)},
            "warnings": {
                "type": "array",
                "items": warning,
                "description": "What the reader of the answer should know.",
            },
        },
        "$defs": definitions,
    }


def _require_all(definitions: dict[str, Any]) -> None:
    """Require every field: those with a default in Python are written, too."""
    for definition in definitions.values():
        if "properties" in definition:
            definition["required"] = [*definition["properties"]]


def _about(entry: Entry, job: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `job`: a job, null if the command is about none, or either for `kair query`."""
    none = {"type": "null"}
    return {"anyOf": [job, none]} if entry.is_query else job if entry.needs == "trace" else none


def _name_causes(definitions: dict[str, Any]) -> None:
    """List the possible causes from their table: the type checker takes any text for a cause."""
    for definition in definitions.values():
        cause = definition.get("properties", {}).get("cause", {})
        for one in cause.get("anyOf", [cause]):
            if one.get("type") == "string":
                one["enum"] = [*CAUSES]


def _tell_kinds(definitions: dict[str, Any]) -> None:
    """Describe each kind of evidence, of open time, and of what limits a recording."""
    from kair_engine.results.evidence_kinds import KINDS
    from kair_engine.results.open_kinds import KINDS as OPEN_KINDS
    from kair_engine.results.sensitivity import Reason

    families = (family.items() for family in (KINDS, OPEN_KINDS, Reason.kinds))
    for kinds in [{name: kind.description() for name, kind in family} for family in families]:
        for definition in definitions.values():
            kind = definition.get("properties", {}).get("kind", {})
            if set(kind.get("enum", ())) == set(kinds):
                kind.pop("type", None)
                del kind["enum"]
                kind["oneOf"] = [{"const": name, "description": text} for name, text in kinds.items()]


def _answer_with(main: str | None) -> str:
    return "The answer." if main is None else f"The answer; --fields and -o csv are about its table `{main}`."


def _leave_out_warnings(definitions: dict[str, Any], result: str) -> None:
    """Leave a result's warnings out: the document has them in words, next to the data."""
    from kair_engine.trace.model import KairWarning

    definitions[result]["properties"].pop("warnings", None)
    for name in [KairWarning.__name__, *(kind.__name__ for kind in KairWarning.__subclasses__())]:
        if f'"#/$defs/{name}"' not in json.dumps(definitions):
            definitions.pop(name, None)
