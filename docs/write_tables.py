"""Writes what the documents list of the code: thresholds, and the keys of the full screen.

python docs/write_tables.py
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from textual.binding import Binding

from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.frame.view import FilteredScreen, ViewScreen
from kair_tui.tui.screen_registry import SCREENS

DOCS = Path(__file__).parent
ENGINE = DOCS.parent / "engine" / "kair_engine"
THRESHOLDS, KEYS = DOCS / "reference" / "thresholds.md", DOCS / "tui.md"
BEGIN, END = "<!-- begin of what write_tables.py writes -->\n", "<!-- end of what write_tables.py writes -->\n"
ROOMS = (
    "stats.py",
    "trace/large_steps.py",
    "trace/side_threads.py",
    "results",
    "timeline",
    "recording",
    "localize",
    "pinpoint.py",
    "blame",
    "whatif",
    "step_bar.py",
    "comparison",
    "triage",
    "evidence",
    "fleet.py",
    "ledger",
    "sensitivity",
    "forecast",
    "probe",
    "confirm",
    "views",
)
"""Of the engine, the lower ones first: those whose constants decide what an answer says."""
_FRAME = (BaseScreen, FilteredScreen, ViewScreen)
_MOVES = frozenset({"move", "page", "first", "last", "edge", "extend"})
"""Actions of the keys that move the cursor in every list and grid."""
_FEWEST_WORDS = 5
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
    """A list for each module of the engine: constants that are numbers, with what the text below each says first."""
    return "".join(_listed(module) for room in ROOMS for module in _modules(ENGINE / room)) + "\n"


def _modules(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _listed(module: Path) -> str:
    lines = [f"- `{name} = {value}`: {text}\n" for name, value, text in constants(module)]
    return f"\n`{module.relative_to(ENGINE).as_posix()}`\n{''.join(lines)}" if lines else ""


def constants(module: Path) -> Iterator[tuple[str, str, str]]:
    """(name, value, first sentence of the text below) of every public constant of numbers that has such a text."""
    source = module.read_text(encoding="utf-8")
    body = ast.parse(source).body
    for statement, below in pairwise(body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        name = ast.unparse(target).strip("()")
        text = _text(below)
        if text and re.fullmatch(r"[A-Z][A-Z0-9_, ]*", name) and _is_of_numbers(statement.value):
            yield name, " ".join((ast.get_source_segment(source, statement.value) or "").split()), text


def _text(statement: ast.stmt) -> str:
    """What a text below a constant says before its reasons: a sentence, up to a colon or semicolon after some words."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return ""
    text = " ".join(str(statement.value.value).split())
    sentence = re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]
    told = re.match(rf"(?:[^ ]+ ){{{_FEWEST_WORDS},}}?[^ ]*(?=[:;] )", sentence)
    return f"{told[0]}." if told else sentence


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
    everywhere = bound_by(_FRAME)
    rows = [("all", everywhere)]
    for entry in SCREENS:
        screen = entry.load()
        parts = [
            part
            for part in (screen, *vars(inspect.getmodule(screen)).values())
            if inspect.isclass(part) and part not in _FRAME and part.__module__.startswith("kair_tui.tui")
        ]
        own = [part for part in parts if not any(part in other.__mro__[1:] for other in parts)]
        rows.append((f"{entry.name} (`{entry.key}`)", [one for one in bound_by(own) if one not in everywhere]))
    lines = [f"| {name} | {'; '.join(_by_key(of))} |\n" for name, of in rows]
    return "| screen | keys |\n|---|---|\n" + "".join(lines)


def _by_key(bound: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Each key once, with all that it does in the parts of a screen; what `tab` does the text above says."""
    of: dict[str, list[str]] = {}
    for key, does in bound:
        of.setdefault(key, []).append(does)
    return (f"`{key}` {', '.join(does)}" for key, does in of.items() if key != "tab")


def bound_by(kinds: Iterable[type]) -> list[tuple[str, str]]:
    """(key, what it does) of every binding of Kair's in these classes and in what they extend, but for moves.

    Where several keys are told as one (`+ -`), they are not told by themselves.
    """
    of: dict[str, str] = {}
    for kind in kinds:
        told = [(one.key_display or _name_of(one), one.description) for one in _bindings(kind)]
        together = {part for key, _ in told for part in re.split("[ /]", key) if part != key}
        for key, does in told:
            if key not in together:
                of.setdefault(does, key)
    return [(key, does) for does, key in of.items()]


def _name_of(binding: Binding) -> str:
    first = binding.key.partition(",")[0]
    return _SIGNS.get(first, first)


def _bindings(kind: type) -> Iterator[Binding]:
    """Those of a class: of a key that it binds again, its own."""
    bound: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("kair_tui") and (base not in _FRAME or kind in _FRAME):
            own = [one for one in vars(base).get("BINDINGS", ()) if isinstance(one, Binding) and one.key not in bound]
            bound |= {one.key for one in own}
            yield from (one for one in own if one.action.partition("(")[0] not in _MOVES | {"go"})


if __name__ == "__main__":
    main()
