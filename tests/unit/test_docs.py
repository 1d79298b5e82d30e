"""What the documents point at is there, and the thresholds they list are those of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("benchmarks", "docs", "engine", "kair_tui", "sample_traces", "tests")
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md")
PATHS = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*")}

LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)")
MODULE = re.compile(r"(?<![\w./-])(?:[\w-]+/)*\w+\.py\b")
FOLDER = re.compile(rf"`((?:{'|'.join(ROOMS)})/(?:[\w.-]+/)*)`")
TABLE_OF = re.compile(r"^(?:Limits of|In|.* In) `([\w/]+\.py)`:\n\n((?:\|.*\n)+)", re.MULTILINE)


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


def constants(module: Path) -> dict[str, str]:
    """The names that a module assigns at its top, several together as they stand there, and the text of the value."""
    text = module.read_text()
    found = {}
    for statement in ast.parse(text).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            value = ast.get_source_segment(text, statement.value) or ""
            found |= {ast.unparse(target).strip("()"): value for target in targets}
    return found


def thresholds(page: Path) -> Iterator[tuple[str, str, str]]:
    """(module, name, value) of every row of a page's tables of thresholds."""
    for module, table in TABLE_OF.findall(page.read_text()):
        for row in table.splitlines()[2:]:
            name, value, _ = (cell.strip() for cell in row.strip("|").split("|"))
            yield module, name.strip("`"), value


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "methods"], ids=name_of)
def test_thresholds_are_those_of_the_code(page: Path) -> None:
    listed = list(thresholds(page))
    assert len(listed) == len(re.findall(r"^\| `_?[A-Z]", page.read_text(), re.MULTILINE))
    for module, name, value in listed:
        known = constants(ROOT / module)
        assert name in known, f"{module} has no {name}"
        assert not value.startswith("`") or value.strip("`") == known[name], f"{name} in {module}"
