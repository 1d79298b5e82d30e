"""Writes what the documents list of the code: thresholds, and the keys of the full screen.

python docs/write_tables.py
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from textual.binding import Binding

from kair_tui.tui.frame.filtered import FilteredScreen
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.screen_registry import SCREENS

DOCS = Path(__file__).parent
ENGINE = DOCS.parent / "engine" / "kair_engine"
THRESHOLDS, KEYS = DOCS / "methods" / "thresholds.md", DOCS / "tui.md"
BEGIN, END = "<!-- begin of what write_tables.py writes -->\n", "<!-- end of what write_tables.py writes -->\n"
ROOMS = (
    "stats.py",
    "trace",
    "timeline",
    "recording",
    "localize",
    "pinpoint",
    "blame",
    "whatif",
    "comparison",
    "triage",
    "fleet",
    "sensitivity",
    "probe",
    "views",
)
"""Of the engine, the lower ones first: those whose constants decide what an answer says."""
_FRAME = (BaseScreen, FilteredScreen, ViewScreen)
_MOVES = frozenset({"move", "page", "first", "last"})
"""Actions of the keys that move the cursor in every list and grid."""
_SIGNS = {"left_square_bracket": "[", "right_square_bracket": "]", "full_stop": ".", "dollar_sign": "$", "minus": "-"}


def main() -> None:
    """Writes them."""
    for page, text in written().items():
        page.write_text(text, encoding="utf-8")


def written() -> dict[Path, str]:
    """The pages as they have to be."""
    return {page: _between(page, part) for page, part in ((THRESHOLDS, thresholds()), (KEYS, keys()))}


def _between(page: Path, part: str) -> str:
    before, begun, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise SystemExit(f"{page} lacks the lines {BEGIN}and {END}")
    return before + begun + part + ended + after


def thresholds() -> str:
    """A list for each module of the engine: the constants that are numbers, with the first sentence below each."""
    parts = []
    for room in ROOMS:
        path = ENGINE / room
        for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if lines := [f"- `{name} = {value}`: {text}\n" for name, value, text in constants(module)]:
                parts.append(f"\n`{module.relative_to(ENGINE).as_posix()}`\n{''.join(lines)}")
    return "".join(parts) + "\n"


def constants(module: Path) -> Iterator[tuple[str, str, str]]:
    """(name, value, first sentence of the text below) of every public constant of numbers that has such a text."""
    source = module.read_text(encoding="utf-8")
    body = ast.parse(source).body
    for statement, below in zip(body, body[1:], strict=False):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        name = ast.unparse(target).strip("()")
        text = _text(below)
        if text and re.fullmatch(r"[A-Z][A-Z0-9_, ]*", name) and _is_of_numbers(statement.value):
            yield name, " ".join((ast.get_source_segment(source, statement.value) or "").split()), text


def _text(statement: ast.stmt) -> str:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return ""
    text = " ".join(str(statement.value.value).split())
    return re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]


def _is_of_numbers(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp):
        return _is_of_numbers(value.operand)
    if isinstance(value, ast.BinOp):
        return _is_of_numbers(value.left) and _is_of_numbers(value.right)
    return isinstance(value, ast.Tuple) and all(map(_is_of_numbers, value.elts))


def keys() -> str:
    """A row for all screens, and one for each of them: what its own keys do, and those of its parts."""
    everywhere = dict(bound_by(_FRAME))
    rows = [("all", everywhere)]
    for entry in SCREENS:
        screen = entry.load()
        parts = [
            part
            for part in (screen, *vars(inspect.getmodule(screen)).values())
            if inspect.isclass(part) and part not in _FRAME and part.__module__.startswith("kair_tui.tui")
        ]
        own = {does: key for does, key in bound_by(parts) if does not in everywhere}
        rows.append((f"{entry.name} (`{entry.key}`)", own))
    lines = [f"| {name} | {', '.join(f'`{key}` {does}' for does, key in of.items())} |\n" for name, of in rows]
    return "| screen | keys |\n|---|---|\n" + "".join(lines)


def bound_by(kinds: Iterable[type]) -> Iterator[tuple[str, str]]:
    """(what it does, key) of every binding of Kair's in these classes and in what they extend, but for moves."""
    for kind in kinds:
        for base in kind.__mro__:
            if not base.__module__.startswith("kair_tui") or (base in _FRAME and kind not in _FRAME):
                continue
            for one in vars(base).get("BINDINGS", ()):
                if isinstance(one, Binding) and one.action.partition("(")[0] not in _MOVES | {"go"}:
                    first = one.key.partition(",")[0]
                    yield one.description, one.key_display or _SIGNS.get(first, first)


if __name__ == "__main__":
    main()
