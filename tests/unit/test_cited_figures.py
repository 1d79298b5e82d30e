"""Figures of a page that cites a report stand in that report: documents and measurements are of one run.

A paragraph, list item or row of a table that links to a report, or to a section of it, has its figures there; some are
sums of the report's rows, listed in `SUMS`. A row can name a test file instead, which has the figure as its limit. A
table below a line that cites a section, and has the same first cell as a table there, is a part of it, cell by cell.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "validation" / "reports"
PAGES = tuple(page for page in sorted((ROOT / "docs").rglob("*.md")) if "validation/reports/" in page.read_text())
MITIGATION = ROOT / "docs" / "mitigation.md"

CITED = re.compile(r"\]\((?:\.\./)+validation/reports/([\w-]+\.md)(?:#([^)\s]+))?\)")
TEST_FILE = re.compile(r"`pytest (?:-m live )?(tests/\S+\.py)`")
HIDDEN = re.compile(r"`[^`]*`|\]\([^)]*\)")
"""Code and the targets of links have no figures."""
FIGURE = re.compile(r"(?<![\w.])(?<![A-Za-z]-)\d[\d,]*(?:\.\d+)?(?:e-\d+)?")
TABLE = re.compile(r"([^\n]*)\n\n((?:\|[^\n]*(?:\n|$))+)")
_HEALTHY = r"healthy, (?:no|under) load: a rank accused +\| "
_QUARTER = r"≥ 25 % of the step, ≥ 8 steps: right rank +\| "
_NOISES = r"^\| (?!throttle|own_cores|shared_cores|under_load)\w+ \| "
_RECORDED = r"^\| (?:own_cores|shared_cores|under_load) \| "
SUMS = {
    ("accuracy.md", "13"): ("real.md", "scripts-written-apart", _HEALTHY + r"(\d+) of"),
    ("accuracy.md", "596"): ("real.md", "scripts-written-apart", _HEALTHY + r"\d+ of (\d+)"),
    ("accuracy.md", "113"): ("real.md", "scripts-written-apart", _QUARTER + r"(\d+) of"),
    ("accuracy.md", "126"): ("real.md", "scripts-written-apart", _QUARTER + r"\d+ of (\d+)"),
    ("accuracy.md", "58"): ("noise.md", "", _NOISES + r"(\d+) of"),
    ("accuracy.md", "55"): ("noise.md", "", _NOISES + r"\d+ of .*?\| (\d*) \|"),
    ("accuracy.md", "6300"): ("noise.md", "", _NOISES + r"\d+ of (\d+)"),
    ("accuracy.md", "63"): ("noise.md", "", _RECORDED + r"(\d+) of"),
    ("accuracy.md", "675"): ("noise.md", "", _RECORDED + r"\d+ of (\d+)"),
}
"""(page, figure) -> (report, section, addends): figures that are sums."""


def figures(text: str) -> list[str]:
    """Return the numbers of a text, without commas between thousands and zeros at the end."""
    return [normal(figure) for figure in FIGURE.findall(HIDDEN.sub("", text))]


def normal(figure: str) -> str:
    whole = figure.rstrip(",").replace(",", "")
    return whole.rstrip("0").rstrip(".") if "." in whole else whole


def section(text: str, anchor: str) -> str:
    """Return the part of a page from the heading with this anchor to the next one as high; all without an anchor."""
    if not anchor:
        return text
    lines, depth = list[str](), 0
    for line in text.splitlines():
        heading = re.match(r"(#+) (.+)", line)
        if heading and (not depth or len(heading[1]) <= depth):
            title = re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")
            depth = len(heading[1]) if title == anchor else 0
        if depth:
            lines.append(line)
    return "\n".join(lines)


def blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs, list items and rows of a page, without its examples."""
    for paragraph in re.split(r"\n\s*\n", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        yield from re.split(r"\n(?=\||\s*- )", paragraph)


def cells(text: str) -> dict[tuple[str, str, str], str]:
    """Return {(corner, row, column): cell} of all tables of a text."""
    result: dict[tuple[str, str, str], str] = {}
    for _, table in TABLE.findall(text):
        head, _, *rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines())
        result |= {(head[0], row[0], name): cell for row in rows for name, cell in zip(head[1:], row[1:], strict=False)}
    return result


def missing(page: str, text: str, reports: Path = REPORTS) -> list[str]:
    """Return the figures, and cells of tables, that what the page's text cites does not have."""

    def cited(name: str, anchor: str) -> str:
        return section((reports / name).read_text(), anchor)

    def is_sum(figure: str) -> bool:
        name, anchor, addends = SUMS[page, figure]
        return sum(int(addend or 0) for addend in re.findall(addends, cited(name, anchor), re.MULTILINE)) == int(figure)

    lacking = list[str]()
    for block in blocks(text):
        sources = [cited(*link) for link in CITED.findall(block)]
        sources += [(ROOT / name).read_text() for name in TEST_FILE.findall(block) if block.startswith("|")]
        # A report's commands have figures, too: the number of jobs.
        known = {normal(figure) for source in sources for figure in FIGURE.findall(source)}
        if sources:
            lacking += [
                figure
                for figure in figures(block)
                if not (is_sum(figure) if (page, figure) in SUMS else figure in known)
            ]
    for before, table in TABLE.findall(text):
        for link in CITED.findall(before):
            there = cells(cited(*link))
            here = {
                key: cell for key, cell in cells(f"\n\n{table}").items() if key[0] in {corner for corner, _, _ in there}
            }
            # Counts in brackets are the report's alone.
            lacking += [cell for key, cell in here.items() if there.get(key, "").partition(" [")[0] != cell]
    return lacking


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_figures_that_cite_a_report_are_in_it(page: Path) -> None:
    assert missing(page.name, page.read_text()) == []


def test_every_measured_figure_of_mitigation_cites_a_report_or_a_test() -> None:
    measured = section(MITIGATION.read_text(), "what-was-measured").partition("| command |\n|---|---|---|\n")[2]
    rows = measured.partition("\n\n")[0].splitlines()
    assert len(rows) > 8
    assert [row for row in rows if not CITED.search(row) and not TEST_FILE.search(row)] == []


def changed_figures() -> Iterator[tuple[str, str]]:
    """Yield every figure that docs/mitigation.md cites, and the page with its last digit changed."""
    text = MITIGATION.read_text()
    known = [block for block in blocks(text) if CITED.search(block) or (TEST_FILE.search(block) and block[0] == "|")]
    known += [table for before, table in TABLE.findall(text) if CITED.search(before)]
    for block in known:
        begin = text.index(block)
        hidden = {index for code in HIDDEN.finditer(block) for index in range(*code.span())}
        for figure in FIGURE.finditer(block):
            last = begin + len(figure[0].rstrip(",")) + figure.start() - 1
            if figure.start() not in hidden:
                yield figure[0], f"{text[:last]}{(int(text[last]) + 1) % 10}{text[last + 1 :]}"


@pytest.mark.slow
def test_a_changed_figure_is_noticed() -> None:
    changed = list(changed_figures())
    unnoticed = [figure for figure, text in changed if not missing(MITIGATION.name, text)]
    assert len(changed) > 60
    # The changed figure can stand elsewhere in the section.
    assert len(unnoticed) < 0.05 * len(changed), unnoticed


@pytest.mark.parametrize(
    ("page", "report", "before", "after"),
    [
        ("mitigation.md", "mitigation.md", "| 1,796 |", "| 1,797 |"),
        ("mitigation.md", "mitigation.md", "3.82 ±", "3.81 ±"),
        ("accuracy.md", "noise.md", "| ar8_10 | 11 of 900", "| ar8_10 | 12 of 900"),
    ],
)
def test_a_changed_report_is_noticed(page: str, report: str, before: str, after: str, tmp_path: Path) -> None:
    for path in REPORTS.glob("*.md"):
        (tmp_path / path.name).write_text(path.read_text())
    measured = (REPORTS / report).read_text()
    assert measured.count(before) == 1
    (tmp_path / report).write_text(measured.replace(before, after))
    assert missing(page, (ROOT / "docs" / page).read_text(), tmp_path)
