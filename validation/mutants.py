"""How many small faults put into the product its tests notice.

    pip install coverage
    python validation/mutants.py map . tests.json
    python validation/mutants.py run . tests.json --count 200 --seed 1 --into mutants.json

`map` runs the test suite once and writes down which test files run which lines of the product. `run` draws mutants by
seed, each one changed comparison, operator, constant, condition or return value in a line that tests run, and runs the
test files that know this line best on a copy of the tree. A mutant is killed where one of them fails or does not end.
It compares two versions of the code: the same count and seed on both, each with a map of its own.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOMS = (
    "engine/kair_engine/triage",
    "engine/kair_engine/localize",
    "engine/kair_engine/whatif",
    "engine/kair_engine/readers",
    "kair_tui/shell",
    "capture/kair_capture/coordinator",
)
"""Where mutants are drawn, unless folders are given."""
PRODUCT = ("kair_tui", "engine", "capture", "mitigate")
FILES_A_MUTANT = 6
"""Of all test files that run a line, those that run the fewest lines in all: they are about it."""
SECONDS_A_MUTANT = 240
_COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """One expression that is replaced: its file, where it begins and ends, what it `was` and what it is `now`."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    was: str
    now: str


def mutants_of(text: str, file: str) -> list[Mutant]:
    """Returns every mutant of a module's `text`; annotations, decorators and messages have none."""
    tree = ast.parse(text)
    skipped = {id(node) for part in _without_effect(tree) for node in ast.walk(part)}
    conditions = {id(node.test) for node in ast.walk(tree) if isinstance(node, ast.If | ast.While)}
    mutants = []
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and id(node) not in skipped and node.end_lineno and node.end_col_offset:
            changed = _changed(node)
            if changed is None and id(node) in conditions:
                changed = ast.UnaryOp(ast.Not(), node)
            if changed is not None:
                place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
                mutants.append(Mutant(file, *place, ast.unparse(node), ast.unparse(changed)))
    return mutants


def _without_effect(tree: ast.AST) -> list[ast.AST]:
    """Lists the parts of a module that change nothing when the program runs, or words alone."""
    parts: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.expr() as annotation):
                parts.append(annotation)
            case ast.FunctionDef(decorator_list=decorators, returns=returns):
                parts += [*decorators, *([returns] if returns else [])]
            case ast.JoinedStr():
                parts.append(node)
    return parts


def _changed(node: ast.expr) -> ast.expr | None:
    """Returns what stands in place of one expression in a mutant, or None where there is nothing to change."""
    changed: ast.expr | None = None
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in _COMPARED:
            changed = ast.Compare(left, [_COMPARED[type(op)]()], right)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED and not _is_text(left, right):
            changed = ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            changed = ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            changed = operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            changed = ast.IfExp(test, orelse, body)
        case ast.Constant(value=bool() as value):
            changed = ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            changed = ast.Constant(value + 1)
    return changed


def _is_text(*sides: ast.expr) -> bool:
    """Returns whether text or lists are joined, which no other operator does."""
    return any(isinstance(side, ast.JoinedStr | ast.Tuple | ast.List) or _is_string(side) for side in sides)


def _is_string(side: ast.expr) -> bool:
    return isinstance(side, ast.Constant) and isinstance(side.value, str)


def applied(text: str, mutant: Mutant) -> str:
    """Returns the module's `text` with the mutant in it."""
    lines = text.encode().splitlines(keepends=True)
    first, last = mutant.line - 1, mutant.end_line - 1
    head, tail = lines[first][: mutant.column], lines[last][mutant.end_column :]
    return b"".join([*lines[:first], head + f"({mutant.now})".encode() + tail, *lines[last + 1 :]]).decode()


class _Contexts:
    """A pytest plugin that names each measured line after the test file that is running."""

    def __init__(self, switch: Callable[[str], None]) -> None:
        self._switch = switch

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Switches to the file of the test that begins."""
        self._switch(item.nodeid.split("::")[0])


def write_map(tree: Path, into: Path, tests: list[str]) -> int:
    """Runs the tests of `tree` in this process and writes, by file and line of the product, which test files run it."""
    os.chdir(tree)
    measured = import_module("coverage").Coverage(
        data_file=None, source=[str(tree / part) for part in PRODUCT], config_file=False
    )
    measured.start()
    status = pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[_Contexts(measured.switch_context)])
    measured.stop()
    data = measured.get_data()
    lines = {
        str(Path(file).relative_to(tree)): {
            str(line): sorted(name for name in names if name)
            for line, names in data.contexts_by_lineno(file).items()
            if any(names)
        }
        for file in sorted(data.measured_files())
    }
    into.write_text(json.dumps(lines))
    print(f"{len(lines)} files of the product are run by tests; pytest ended with {int(status)}")
    return 0


def draw(
    tree: Path, lines: dict[str, dict[str, list[str]]], rooms: tuple[str, ...], count: int, seed: int
) -> list[Mutant]:
    """Draws `count` mutants in lines that tests run, each line as likely as the next."""
    candidates: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for file, run in lines.items():
        if file.startswith(tuple(f"{room}/" for room in rooms)):
            for mutant in mutants_of((tree / file).read_text(), file):
                if str(mutant.line) in run:
                    candidates[file, mutant.line].append(mutant)
    chance = random.Random(seed)
    places = chance.sample(sorted(candidates), min(count, len(candidates)))
    return [chance.choice(candidates[place]) for place in places]


def tests_of(mutant: Mutant, lines: dict[str, dict[str, list[str]]]) -> list[str]:
    """Returns the test files that are most about a mutant's line."""
    sizes = Counter(name for run in lines.values() for names in run.values() for name in names)
    return sorted(lines[mutant.file][str(mutant.line)], key=lambda name: (sizes[name], name))[:FILES_A_MUTANT]


def judge(mutant: Mutant, tests: list[str], copies: list[Path]) -> dict[str, Any]:
    """Runs `tests` on a copy of the tree with the mutant in it, and returns whether it was killed."""
    copy = copies.pop()
    path = copy / mutant.file
    original = path.read_text()
    try:
        path.write_text(applied(original, mutant))
        killed_by = next((test for test in tests if not _passes(copy, test)), None)
    finally:
        path.write_text(original)
        copies.append(copy)
    return {**asdict(mutant), "killed": killed_by is not None, "by": killed_by, "tests": tests}


def _passes(copy: Path, test: str) -> bool:
    paths = [copy, *(copy / part for part in ("engine", "capture", "mitigate", "tests"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS_A_MUTANT, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode in (0, 5)


def copied(tree: Path, into: Path) -> Path:
    """Copies what git tracks of `tree` into a new folder, next to a link to what lies beside the tree."""
    copy = Path(tempfile.mkdtemp(dir=into)) / "tree"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / name, copy / name)
    beside = tree.parent / "shared"
    if beside.exists():
        (copy.parent / "shared").symlink_to(beside.resolve())
    return copy


def run(options: argparse.Namespace) -> int:
    """Draws, judges and reports."""
    lines = json.loads(options.map.read_text())
    rooms = tuple(options.rooms) or ROOMS
    drawn = draw(options.tree, lines, rooms, options.count, options.seed)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        copies = [copied(options.tree, Path(folder)) for _ in range(options.at_once)]
        used = sorted({test for mutant in drawn for test in tests_of(mutant, lines)})
        sound = {test for test in used if _passes(copies[0], test)}
        print(f"left out, as they fail without a mutant: {', '.join(sorted({*used} - sound)) or 'none'}")
        judged = list(
            pool.map(
                lambda mutant: judge(mutant, [test for test in tests_of(mutant, lines) if test in sound], copies), drawn
            )
        )
    if options.into:
        options.into.write_text(json.dumps(judged, indent=1))
    for room in rooms:
        of_room = [one for one in judged if str(one["file"]).startswith(f"{room}/")]
        print(f"{room}: {sum(bool(one['killed']) for one in of_room)} of {len(of_room)} killed")
    print(f"all: {sum(bool(one['killed']) for one in judged)} of {len(judged)} killed")
    for one in judged:
        if not one["killed"]:
            print(f"  lives: {one['file']}:{one['line']}  {one['was']}  →  {one['now']}")
    return 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    map_ = commands.add_parser("map", help="which test files run which lines")
    map_.add_argument("tree", type=Path)
    map_.add_argument("into", type=Path)
    map_.add_argument("tests", nargs="*", default=["tests"])
    run_ = commands.add_parser("run", help="draw mutants and run their tests")
    run_.add_argument("tree", type=Path)
    run_.add_argument("map", type=Path)
    run_.add_argument("rooms", nargs="*")
    run_.add_argument("--count", type=int, default=200)
    run_.add_argument("--seed", type=int, default=1)
    run_.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    run_.add_argument("--into", type=Path)
    options = parser.parse_args()
    options.tree = options.tree.resolve()
    if options.command == "map":
        return write_map(options.tree, options.into.resolve(), options.tests)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
