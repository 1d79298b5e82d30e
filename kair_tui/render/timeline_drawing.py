"""Rows of a timeline drawn in characters: half blocks with colours, one per kind without, marks over them.

Also the timeline in words: its headline, the operation under the cursor, and the names of what is drawn.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, Literal, NamedTuple

from kair_engine.results.timeline import (
    ARRIVED,
    ARRIVED_LAST,
    LETTERS,
    FixedTimeline,
    TimelineDelay,
    TimelineKind,
    TimelineOperation,
    TimelineResult,
    TimelineRow,
)
from kair_tui.render.drawing import stretches
from kair_tui.render.text import short_name, spaced
from kair_tui.render.units import duration, plural, signed_duration

Mark = Literal["", "arrival", "last", "path", "hop", "delay"]
Ink = Literal[TimelineKind, Mark]
NOTHING: Final = LETTERS["nothing"]
KIND_OF: Final[dict[str, TimelineKind]] = {letter: kind for kind, letter in LETTERS.items()}


@dataclass(frozen=True)
class Signs:
    """A character for every kind and mark."""

    kinds: dict[TimelineKind, str]
    marks: dict[Mark, str]
    halves: "Halves | None"
    """With colours."""


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
    """Return the characters for that kind of terminal."""
    return IN_ASCII if ascii_only else IN_COLOURS if coloured else WITHOUT_COLOURS


def solid(drawn_with: Signs) -> Signs:
    """Return the characters with waiting unshaded: one byte a cell on a coloured ground, where shades take three."""
    return replace(drawn_with, kinds={**drawn_with.kinds, "waiting": drawn_with.kinds["compute"]})


class Run(NamedTuple):
    """Equal cells: the meanings of foreground and background."""

    text: str
    front: Ink
    back: TimelineKind


@dataclass(frozen=True)
class DrawnLine:
    """A line of the picture, and its rows: one, or two above each other."""

    rows: tuple[int, ...]
    """Indices of the result's rows."""
    runs: tuple[Run, ...]


@dataclass
class _Marks:
    """Marks over cells, the most important for each: line → column → mark."""

    of_line: dict[int, dict[int, Mark]] = field(default_factory=dict)

    def put(self, line: int, columns: Iterable[int], mark: Mark) -> None:
        """Put marks over any others."""
        here = self.of_line.setdefault(line, {})
        for column in columns:
            here[column] = mark


def draw_rows(result: TimelineResult, columns: int, drawn_with: Signs, *, two_a_line: bool = False) -> list[DrawnLine]:
    """Return the rows in lines of `columns` cells, with arrivals and the blame path over them.

    `two_a_line` puts two ranks into a line as upper and lower halves, which needs colours. Else halves of a cell are
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


def with_fixes(result: TimelineResult) -> TimelineResult | None:
    """Return the same step with the fixes, to be drawn like any other; None without fixes."""
    fixed = result.fixed
    if fixed is None:
        return None
    return replace(
        result,
        around=TimelineDelay(fixed.delayed, None, False, None, None, 0.0),
        step_us=fixed.step_us,
        rows=fixed.rows,
        collectives=fixed.collectives,
        collectives_in_view=fixed.collectives_in_view,
        path=(),
        under=fixed.under,
        fixed=None,
    )


def recorded_in_words(fixed: FixedTimeline) -> str:
    """Return the caption of the recorded rows: `as recorded: step 102 ms`."""
    return f"as recorded: step {duration(fixed.recorded_step_time_us)}"


def fixed_in_words(fixed: FixedTimeline) -> str:
    """Return the caption of the fixed rows: `with rank=2+kind=compute: step 74.8 ms, −27.0 ms`."""
    changed = signed_duration(-fixed.saved_us) if fixed.saved_us else "nothing saved"
    return f"with {' and '.join(fixed.fixes)}: step {duration(fixed.step_time_us)}, {changed}"


def saved_mark(result: TimelineResult, columns: int) -> str:
    """Return a mark from the step's end with the fixes to its recorded end, under the cells; "" out of view."""
    fixed = result.fixed
    if fixed is None or not fixed.saved_us:
        return ""
    first, last = sorted((fixed.step_us, result.step_us))
    if first < result.begin_us or last > result.end_us:
        return ""
    low, high = (column_of(result, time, columns) for time in (first, last))
    saving = f" {duration(abs(fixed.saved_us))} {'saved' if fixed.saved_us > 0 else 'longer'} "
    inside = f"{saving:-^{max(high - low - 1, 0)}}"
    if len(inside) <= high - low - 1:
        return " " * low + f"|{inside}|"
    # Without room between the ends, before them.
    return f"{saving.strip():>{max(low - 1, 0)}} |{'-' * (high - low - 1)}|"


def legend(result: TimelineResult) -> list[TimelineKind]:
    """Return the kinds in view, the most time-consuming first."""
    rows = [*result.rows, *(() if result.fixed is None else result.fixed.rows)]
    seen = Counter("".join(row.windows for row in rows))
    return [KIND_OF[letter] for letter, _ in seen.most_common() if letter != NOTHING]


def marks_in_words(result: TimelineResult, drawn_with: Signs) -> list[str]:
    """Return the meaning of the marks over the bars, the blame path as drawn: without colours bars show through it."""
    marks = drawn_with.marks
    meanings = [f"{marks['arrival']} arrives", f"{marks['last']} arrives last"]
    if not result.path:
        return [*meanings, f"{marks['delay']} the delay"]
    between = (
        marks["path"] if drawn_with.halves is not None else drawn_with.kinds[next(iter(legend(result)), "compute")]
    )
    looks = 2 * f"{between}{marks['path']}"
    return [*meanings, f"{looks} blame path: from the delay {marks['delay']} to waiting ranks"]


def axis(result: TimelineResult, columns: int) -> str:
    """Return times under or over the cells, as many as fit."""
    room, line = 16, ""
    for column in range(0, columns, room):
        text = duration(result.begin_us + (result.end_us - result.begin_us) * column / columns)
        mark = f"|{text}"
        if column + len(mark) < columns:
            line = line.ljust(column) + mark
    return line.ljust(columns)[:columns]


def column_of(result: TimelineResult, time_us: float, columns: int) -> int:
    """Return the cell of a time, the nearest one if it is out of view."""
    share = (time_us - result.begin_us) / max(result.end_us - result.begin_us, 1e-9)
    return min(max(int(share * columns), 0), columns - 1)


def row_of(rows: Sequence[TimelineRow], rank: int, lane: str | None = None) -> int | None:
    """Return the index of the row of a rank, or of its thread or stream; None without one."""
    found = (at for at, row in enumerate(rows) if row.lane == lane and row.first_rank <= rank <= row.last_rank)
    return next(found, None)


def resampled(windows: str, cells: int) -> str:
    """Return one letter per cell: the most frequent of several windows; fewer windows are repeated."""
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
    """Return the rows that share a line: two successive ranks if `pairs`; lanes never."""
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
    """Draw along each stop's rank from its begin to its end, and up or down to the next one at its end.

    Only `every` so many cells: without colours the kinds between them must stay visible, as `marks_in_words` explains.
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
    """Return equal cells joined: a kind's own character if both halves show it, else the half block of two kinds."""
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


WORDS: Final[dict[TimelineKind, str]] = {
    "compute": "compute",
    "communication": "transfer",
    "waiting": "waiting",
    "input": "input",
    "host": "host gap",
    "rest": "launched",
    "unknown": "unmatched",
    "operation": "host op",
    "synchronisation": "sync",
}
NAME: Final = 40
"""Characters of an operator's name in a sentence."""
_WORTH_SAYING: Final = 0.05
"""An operation that differs from its peers' time by less takes as long as theirs."""


def timeline_headline(result: TimelineResult) -> str:
    """Return the delay, and who waited for it."""
    around = result.around
    one = around.operation
    name, when = short_name(one.operator, NAME), moment(one.begin_us)
    slow = f"idle before {name} {when}" if around.is_edge else f"{name} {when}: {takes(one)}"
    what = f"step {result.step}: rank {one.rank}, {slow}"
    if around.waited_in is None or around.late_rank is None:
        return what
    cause = f" ({spaced(around.cause)})" if around.cause not in (None, "unknown") else ""
    name = short_name(around.waited_in, NAME)
    waited = f"the others then waited {duration(around.waited_us)} in total"
    return f"{what}{cause}; {waited} for rank {around.late_rank} in {name}"


def moment(us: float) -> str:
    """Return `at 18.4 ms`; for a host that runs ahead, `5.39 ms before the step`."""
    return f"at {duration(us)}" if us >= 0 else f"{duration(-us)} before the step"


def takes(one: TimelineOperation) -> str:
    """Return an operation's time compared with its peers', or the waiting for it: `23.9 ms instead of 4.08 ms`."""
    if one.waited_us is not None and one.late_us is not None:
        late = f"arrived {signed_duration(one.late_us)}" if abs(one.late_us) >= 1 else "arrived with the others"
        return f"{late}, waited {duration(one.waited_us)}, transfer {duration(one.own_us)}"
    if one.expected_us is None:
        return f"{duration(one.own_us)}, which no peer runs"
    idle = one.held_up_us - (one.expected_held_up_us or 0.0)
    if idle > max(one.excess_us or 0.0, _WORTH_SAYING * one.expected_us):
        return f"{duration(one.held_up_us)} idle before it, its peers {duration(one.expected_held_up_us or 0.0)}"
    if abs(one.excess_us or 0.0) <= max(_WORTH_SAYING * one.expected_us, 1.0):
        return f"{duration(one.own_us)}, as its peers"
    return f"{duration(one.own_us)} instead of {duration(one.expected_us)}"


def who(row: TimelineRow) -> str:
    """Return `rank 3`, or `rank 3 of 0-7`."""
    return f"rank {row.rank}" + (f" of {row.first_rank}-{row.last_rank}" if row.ranks > 1 else "")


def label(row: TimelineRow) -> str:
    """Return a row's label: the rank, for several the worst and their range, or a thread or stream."""
    if row.lane is not None:
        return f"  {row.lane}"
    return str(row.rank) if row.ranks == 1 else f"{row.rank} of {row.first_rank}-{row.last_rank}"


def rows_in_words(result: TimelineResult) -> str:
    """Return `256 ranks, 8 a row, the worst shown`."""
    of_ranks = [row for row in result.rows if row.lane is None]
    ranks = sum(row.ranks for row in of_ranks)
    most = max((row.ranks for row in of_ranks), default=1)
    return plural(ranks, "rank") + (f", {most} a row, the worst shown" if most > 1 else "")


def view_in_words(result: TimelineResult) -> str:
    """Return the part of the step in view, and the number of collectives."""
    return f"{part_in_view(result)}, {plural(result.collectives_in_view, 'collective')}"


def clock_in_words(result: TimelineResult) -> str | None:
    """Return how the step is defined, unless its marks bracket it on the hosts."""
    if result.timed_on == "host":
        return None
    before = f"up to {duration(-result.earliest_us)} " if result.earliest_us < 0 else ""
    return f"hosts run ahead: the step is the devices', from 0 on; threads work for it {before}before that"


def part_in_view(result: TimelineResult) -> str:
    """Return `14.4 ms to 71.0 ms of 119 ms`."""
    if result.end_us <= 0:
        span = f"{duration(-result.begin_us)} to {duration(-result.end_us)}"
        return f"{span} before the step of {duration(result.step_us)}"
    begin, before = max(result.begin_us, 0.0), max(-result.begin_us, 0.0)
    whole = begin <= 0 and result.end_us >= result.step_us
    part = "the whole step" if whole else f"{duration(begin)} to {duration(result.end_us)}"
    earlier = f", and {duration(before)} before it" if before else ""
    return f"{part} of {duration(result.step_us)}{earlier}"
