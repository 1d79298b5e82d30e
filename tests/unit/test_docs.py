"""What the documents point at is there, and the thresholds they list are those of the code."""

import ast
import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from kair_engine.results.open_kinds import KINDS
from kair_engine.results.sensitivity import Reason, ReasonKind
from kair_engine.results.triage import OpenKind
from kair_tui.cli.app import chosen, parameters
from kair_tui.cli.failures import ExitCode
from kair_tui.cli.registry import COMMANDS
from kair_tui.commands.schema import schema_of

ROOT = Path(__file__).parents[2]
ROOMS = ("benchmarks", "capture", "docs", "engine", "kair_tui", "mitigate", "sample_traces", "tests", "validation")
REPORTS = ROOT / "validation" / "reports"
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "deploy" / "README.md",
    *sorted(REPORTS.glob("*.md")),
)
PATHS = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*")}

SCRIPTS = ROOT / "docs" / "json.md"
RUNBOOKS = ROOT / "docs" / "runbooks.md"

LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)")
MODULE = re.compile(r"(?<![\w./-])(?:[\w-]+/)*\w+\.py\b")
FOLDER = re.compile(rf"`((?:{'|'.join(ROOMS)})/(?:[\w.-]+/)*)`")
EXAMPLE = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`(_?[A-Z][A-Z0-9]*_[A-Z0-9_]+)(?: = ([^`]+))?`")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings have."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, fragment in LINK.findall(page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        assert not fragment or fragment in anchors(there), f"{target}#{fragment}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_and_folders_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    missing = {
        name for name in MODULE.findall(text) if not any(path == name or path.endswith(f"/{name}") for path in PATHS)
    }
    missing |= {folder for folder in FOLDER.findall(text) if not (ROOT / folder).is_dir()}
    assert missing == set()


@cache
def constants(module: Path) -> dict[str, str]:
    """The names that a module assigns at its top, several together as they stand there, and the text of the value."""
    text = module.read_text()
    found: dict[str, str] = {}
    for statement in ast.parse(text).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            value = ast.get_source_segment(text, statement.value) or ""
            found |= {ast.unparse(target).strip("()"): value for target in targets}
    return found


@cache
def sources() -> dict[Path, str]:
    return {
        module: module.read_text()
        for room in ("engine", "capture", "kair_tui")
        for module in (ROOT / room).rglob("*.py")
    }


@cache
def values_of(name: str) -> set[str]:
    """The values that a name has in the modules that assign it alone."""
    return {constants(module)[name] for module, text in sources().items() if name in text and name in constants(module)}


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT / "docs"], ids=name_of)
def test_constants_that_a_page_names_are_there_with_the_value_that_it_tells(page: Path) -> None:
    for name, value in NAMED.findall(page.read_text()):
        assert any(name in text for text in sources().values()), name
        assert not value or value in values_of(name), f"{name} = {value}"


@cache
def write_tables() -> ModuleType:
    """`docs/write_tables.py`."""
    spec = importlib.util.spec_from_file_location("write_tables", ROOT / "docs" / "write_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_documents_list_of_the_code_is_as_it_is_written() -> None:
    for page, text in write_tables().written().items():
        assert page.read_text() == text, "python docs/write_tables.py writes it anew"


def test_every_exit_status_is_told() -> None:
    told = re.findall(r"^\| `(\d+)` \|", SCRIPTS.read_text().partition("\n## ")[0], re.MULTILINE)
    assert list(map(int, told)) == sorted(ExitCode)


@pytest.mark.slow
def test_the_schema_of_every_answer_names_its_main_table() -> None:
    for entry in (entry for entry in COMMANDS if entry.has_result):
        schema = schema_of(entry)
        main = entry.load_view().main
        told = re.findall(r"`(\w+)`", schema["properties"]["data"]["description"])
        assert told == ([main] if main else [])
        assert main is None or main in fields_of(schema, schema["properties"]["data"])


def fields_of(schema: dict[str, Any], part: dict[str, Any]) -> set[str]:
    return set(schema["$defs"][part["$ref"].rpartition("/")[2]]["properties"])


@pytest.mark.parametrize(
    ("command", "record", "told", "kinds"),
    [
        ("triage", "OpenItem", {name: kind.description() for name, kind in KINDS.items()}, OpenKind),
        (
            "sensitivity",
            "Reason",
            {name: kind.description() for name, kind in Reason.kinds.items()},
            ReasonKind,
        ),
    ],
    ids=["open", "limits"],
)
def test_kinds_are_told_in_the_schema_as_they_are_declared(
    command: str, record: str, told: dict[str, str], kinds: object
) -> None:
    schema = schema_of(next(entry for entry in COMMANDS if entry.name == command))
    listed = schema["$defs"][record]["properties"]["kind"]["oneOf"]
    assert tuple(told) == get_args(kinds)
    assert {one["const"]: one["description"] for one in listed} == told


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from (key, *(keys(inner) if key != "figures" else ()))
    if isinstance(value, list):
        for inner in value:
            yield from keys(inner)


@pytest.mark.slow
def test_examples_are_json_with_fields_that_there_are() -> None:
    schemas = [schema_of(entry) for entry in COMMANDS if entry.has_result]
    known = {name for schema in schemas for part in schema["$defs"].values() for name in part.get("properties", ())}
    known |= {name for schema in schemas for name in schema["properties"]}
    for example in EXAMPLE.findall(SCRIPTS.read_text()):
        assert set(keys(json.loads(example))) <= known


def sessions() -> Iterator[tuple[str, str]]:
    """(command line, what it prints), of docs/json.md and docs/runbooks.md."""
    for block in SESSION.findall(SCRIPTS.read_text() + RUNBOOKS.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = part.partition("\n")
            yield line, printed


def printed_by(line: str, programs: Path) -> str:
    """What a shell prints in this checkout."""
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(line, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(("line", "printed"), [*sessions()], ids=[f"line {at}" for at, _ in enumerate(sessions(), 1)])
@pytest.mark.usefixtures("own_places")
def test_lines_for_scripts_print_what_stands_there(line: str, printed: str, programs: Path) -> None:
    assert printed_by(line, programs) == printed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jq") is None or shutil.which("bash") is None, reason="bash or jq is not installed")
@pytest.mark.usefixtures("own_places")
def test_runbooks_in_bash_and_jq_end_as_the_bundled_ones_do(programs: Path) -> None:
    said = printed_by("docs/scripts/nightly.sh sample_traces/slow_operator || echo ended with $?", programs)
    assert said == "straggler: rank 2 (compute, 22.3 of the 95.0 ms step)\nended with 10\n"
    said = printed_by("docs/scripts/first-look.sh sample_traces/slow_operator || echo ended with $?", programs)
    assert said.endswith("\nended with 10\n")
    assert "rank 2" in said


@pytest.mark.slow
def test_the_example_of_the_account_prints_what_stands_there(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    code, shown = (page.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("python", "text"))
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.partition("\n")[2] == shown, "the first line is the table's shape"


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
def test_the_demo_prints_what_the_readme_shows(programs: Path) -> None:
    shown = (ROOT / "README.md").read_text().partition("```text\n")[2].partition("```")[0]
    printed = printed_by("COLUMNS=200 kair triage sample_traces/slow_operator", programs).splitlines()
    assert [line for line in shown.splitlines() if line.strip() != "…" and line not in printed] == []


READ = (ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "glossary.md"))
"""What a reader reads; `docs/reference` and the glossary are for looking things up."""


def test_documents_stay_short() -> None:
    assert len(READ) == 14
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in READ) <= 22_000
    assert len(READ[0].read_text(encoding="utf-8").split()) <= 900


def command_lines(page: Path) -> Iterator[list[str]]:
    """Yield the words of every `kair …` in a page's code, up to a pipe, a comment or an ellipsis."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(?:console|sh|text)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in fenced for line in block.splitlines()]
    lines += re.findall(r"`(kair [^`]+)`", text)
    for line in lines:
        begin = re.match(r"(?:.*[;&|(] *|\w+=\S+ )*(kair [^#|>&;`…]*)", line)
        if begin is not None and "://" not in line.partition("kair ")[0]:
            with contextlib.suppress(ValueError):  # half of a quotation
                yield shlex.split(begin[1])


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_commands_that_a_page_shows_exist_with_their_options(page: Path) -> None:
    known = {entry.name: entry for entry in COMMANDS}
    general = {"--version", "--help", "-h", "--man-pages", "--install-completion", "--show-completion"}
    for _, first, *rest in (words for words in command_lines(page) if len(words) > 1):
        if first in known:
            entry, own = chosen(known[first], rest[: rest.index("--")] if "--" in rest else rest)
            taken = {option for of in parameters(entry) for option in of.opts}
            options = {word.partition("=")[0] for word in own if re.match(r"--?[a-zA-Z]", word)}
            assert options <= taken | general, (entry.line, options - taken)
        else:
            assert first in general or re.search(r"[/.]|^[A-Z]+$", first), first
