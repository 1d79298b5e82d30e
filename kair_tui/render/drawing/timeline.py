"""Rows of a timeline drawn in signs: half blocks where there are colours, a sign for each kind, marks over them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal, NamedTuple

from kair_engine.results.timeline import (
    ARRIVED,
    ARRIVED_LAST,
    LETTERS,
    TimelineKind,
    TimelineResult,
    TimelineRow,
)
from kair_tui.render.drawing.heat import stretches
from kair_tui.render.units import duration

Mark = Literal["", "arrival", "last", "path", "hop", "delay"]
Ink = Literal[TimelineKind, Mark]
NOTHING: Final = LETTERS["nothing"]
KIND_OF: Final[dict[str, TimelineKind]] = {letter: kind for kind, letter in LETTERS.items()}


@dataclass(frozen=True)
class Signs:
    """A sign for every kind and mark."""

    kinds: dict[TimelineKind, str]
    marks: dict[Mark, str]
    halves: "Halves | None"
    """Where there are colours."""


class Halves(NamedTuple):
    """Half blocks of a cell."""

    left: str
    right: str
    upper: str
    lower: str


_KINDS: Final[dict[TimelineKind, str]] = {
    "compute": "█",
    "communication": "▓",
    "waiting": "░",
    "input": "▚",
    "host": "▒",
    "rest": "·",
    "unknown": "?",
    "operation": "▄",
    "synchronisation": "┄",
    "nothing": " ",
}
_MARKS: Final[dict[Mark, str]] = {"arrival": "╎", "last": "◆", "path": "━", "hop": "┃", "delay": "●"}
IN_COLOURS: Final = Signs(_KINDS, _MARKS, Halves("▌", "▐", "▀", "▄"))
WITHOUT_COLOURS: Final = Signs(_KINDS, _MARKS, None)
IN_ASCII: Final = Signs(
    {
        "compute": "#",
        "communication": "=",
        "waiting": ".",
        "input": "%",
        "host": "h",
        "rest": ",",
        "unknown": "?",
        "operation": "o",
        "synchronisation": "s",
        "nothing": " ",
    },
    {"arrival": "'", "last": "*", "path": "-", "hop": "|", "delay": "@"},
    None,
)


def signs(*, ascii_only: bool, coloured: bool) -> Signs:
    """For a terminal of that kind."""
    return IN_ASCII if ascii_only else IN_COLOURS if coloured else WITHOUT_COLOURS


class Run(NamedTuple):
    """Equal cells: what is drawn in front and behind, both by what they mean."""

    text: str
    front: Ink
    back: TimelineKind


@dataclass(frozen=True)
class DrawnLine:
    """A line of the picture, and the rows that it shows: one, or two above each other."""

    rows: tuple[int, ...]
    """Places in the result's rows."""
    runs: tuple[Run, ...]


@dataclass
class _Marks:
    """Marks over cells, the most telling of each: line → column → mark."""

    of_line: dict[int, dict[int, Mark]] = field(default_factory=dict)

    def put(self, line: int, columns: Iterable[int], mark: Mark) -> None:
        """Over whatever is there."""
        here = self.of_line.setdefault(line, {})
        for column in columns:
            here[column] = mark


def draw_rows(result: TimelineResult, columns: int, drawn_with: Signs, *, two_a_line: bool = False) -> list[DrawnLine]:
    """The rows in lines of `columns` cells, with arrivals and the blame path over them.

    `two_a_line` puts two ranks into a line as upper and lower halves; it takes colours. Else halves of a cell are
    two windows of one rank.
    """
    pairs = two_a_line and drawn_with.halves is not None
    lines = _lines(result.rows, pairs=pairs)
    marks = _arrivals(result, lines, columns)
    _draw_path(result, lines, columns, marks, every=1 if drawn_with.halves is not None else 2)
    windows = columns if pairs or drawn_with.halves is None else 2 * columns
    drawn: dict[int, str] = {}
    for rows in lines:
        for row in rows:
            drawn[row] = resampled(result.rows[row].windows, windows)
    left, right, upper, lower = drawn_with.halves or Halves("", "", "", "")
    picture = []
    for number, rows in enumerate(lines):
        first = drawn[rows[0]]
        second = first
        if pairs:
            second = drawn[rows[1]] if len(rows) > 1 else NOTHING * columns
        elif drawn_with.halves is not None:
            first, second = first[::2], first[1::2]
        cells = list(zip(first, second, strict=True))
        halves = (upper, lower) if pairs else (left, right)
        runs = _runs(cells, halves, marks.of_line.get(number, {}), drawn_with)
        picture.append(DrawnLine(rows, runs))
    return picture


def legend(result: TimelineResult) -> list[TimelineKind]:
    """The kinds that are in view, those that take most time first."""
    seen = Counter("".join(row.windows for row in result.rows))
    return [KIND_OF[letter] for letter, _ in seen.most_common() if letter != NOTHING]


def axis(result: TimelineResult, columns: int) -> str:
    """Times under or over the cells, as many as there is room for."""
    room, line = 16, ""
    for column in range(0, columns, room):
        text = duration(result.begin_us + (result.end_us - result.begin_us) * column / columns)
        mark = f"|{text}"
        if column + len(mark) < columns:
            line = line.ljust(column) + mark
    return line.ljust(columns)[:columns]


def column_of(result: TimelineResult, time_us: float, columns: int) -> int:
    """The cell that a time falls in, the nearest where it is out of view."""
    share = (time_us - result.begin_us) / max(result.end_us - result.begin_us, 1e-9)
    return min(max(int(share * columns), 0), columns - 1)


def row_of(rows: Sequence[TimelineRow], rank: int, lane: str | None = None) -> int | None:
    """The place of the row that stands for a rank, or of its thread or stream; None where no row does."""
    found = (at for at, row in enumerate(rows) if row.lane == lane and row.first_rank <= rank <= row.last_rank)
    return next(found, None)


def resampled(windows: str, cells: int) -> str:
    """As many letters as there are cells: of several windows the most frequent, of fewer each more than once."""
    if len(windows) == cells:
        return windows
    if len(windows) < cells:
        return "".join(windows[cell * len(windows) // cells] for cell in range(cells))
    return "".join(_most(windows[part.start : part.stop]) for part in stretches(len(windows), cells))


def _most(letters: str) -> str:
    seen = Counter(letters)
    if len(seen) > 1:
        del seen[NOTHING]
    return seen.most_common(1)[0][0]


def _lines(rows: Sequence[TimelineRow], *, pairs: bool) -> list[tuple[int, ...]]:
    """Which rows share a line: two of ranks that follow one another, where that is wanted; lanes never."""
    lines: list[tuple[int, ...]] = []
    for at, row in enumerate(rows):
        alone = not pairs or row.lane is not None or not lines or len(lines[-1]) > 1
        if alone or rows[lines[-1][0]].lane is not None or lines[-1][-1] != at - 1:
            lines.append((at,))
        else:
            lines[-1] = (lines[-1][0], at)
    return lines


def _arrivals(result: TimelineResult, lines: Sequence[tuple[int, ...]], columns: int) -> _Marks:
    marks = _Marks()
    for number, rows in enumerate(lines):
        for letter, mark in ((ARRIVED, "arrival"), (ARRIVED_LAST, "last")):
            for row in rows:
                text = result.rows[row].arrivals
                marks.put(number, _columns_with(text, letter, columns), mark)  # type: ignore[arg-type]
    return marks


def _columns_with(text: str, letter: str, columns: int) -> list[int]:
    found, at = [], text.find(letter)
    while at >= 0:
        found.append(at * columns // len(text))
        at = text.find(letter, at + 1)
    return found


def _draw_path(
    result: TimelineResult, lines: Sequence[tuple[int, ...]], columns: int, marks: _Marks, *, every: int
) -> None:
    """Along each stop's rank from its begin to its end, and up or down to the next one where that ends.

    Only `every` so many cells: without colours the kinds between them have to be seen.
    """
    line_of = {row: number for number, rows in enumerate(lines) for row in rows}
    before: int | None = None
    for stop in result.path:
        row = row_of(result.rows, stop.rank)
        line = None if row is None else line_of[row]
        if line is None:
            before = None
            continue
        if result.begin_us <= stop.end_us <= result.end_us and before is not None and before != line:
            low, high = sorted((before, line))
            column = column_of(result, stop.end_us, columns)
            for between in range(low + 1, high):
                marks.put(between, [column], "hop")
        if stop.begin_us < result.end_us and stop.end_us > result.begin_us:
            first, last = (column_of(result, time, columns) for time in (stop.begin_us, stop.end_us))
            known = marks.of_line.get(line, {})
            free = [column for column in range(first, last + 1, every) if known.get(column) not in ("last", "arrival")]
            marks.put(line, free, "path")
        before = line
    delay = result.around.operation
    row = row_of(result.rows, delay.rank)
    if row is not None and result.begin_us <= delay.begin_us < result.end_us:
        marks.put(line_of[row], [column_of(result, delay.begin_us, columns)], "delay")


def _runs(
    cells: list[tuple[str, str]], halves: tuple[str, str], marks: dict[int, Mark], drawn_with: Signs
) -> tuple[Run, ...]:
    """Equal cells together: a kind's own sign where both halves are of it, else the half block of two kinds."""
    marked: list[tuple[str, str, Mark]] = [(first, second, "") for first, second in cells]
    for column, mark in marks.items():
        marked[column] = (*cells[column], mark)
    runs = []
    for (first, second, mark), group in groupby(marked):
        count = len(list(group))
        front, back = KIND_OF[first], KIND_OF[second]
        if mark:
            runs.append(Run(drawn_with.marks[mark] * count, mark, front if front != "nothing" else back))
        elif first == second:
            runs.append(Run(drawn_with.kinds[front] * count, front, "nothing"))
        elif front == "nothing":
            runs.append(Run(halves[1] * count, back, front))
        else:
            runs.append(Run(halves[0] * count, front, back))
    return tuple(runs)
