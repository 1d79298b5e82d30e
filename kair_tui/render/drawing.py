"""Figures drawn in characters: bars, curves and rows of heat.

Curves (a rank's completion over its peers' band, shares) use dots of Braille or SIGNS_IN_ASCII. A horizontal bar has a
mark for the usual value. A row of counts uses glyphs of growing darkness.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal

from kair_engine.frozen import dataclass
from kair_engine.results.rank import CurveDistance, CurvePoint

Layer = Literal["", "band", "median", "distance", "rank"]
"""The meaning of a character; later ones are drawn over earlier ones."""

_BRAILLE: Final = 0x2800
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot of a Braille character, by column and row."""


@dataclass(frozen=True)
class Signs:
    """The characters of the layers; `rank` None is Braille."""

    band: str
    median: str
    distance: str
    rank: str | None


SIGNS: Final = Signs(band="░", median="▒", distance="┃", rank=None)
SIGNS_IN_ASCII: Final = Signs(band=".", median=":", distance="|", rank="*")


def signs(*, ascii_only: bool) -> Signs:
    """Return the characters for either kind of terminal."""
    return SIGNS_IN_ASCII if ascii_only else SIGNS


@dataclass(frozen=True)
class Picture:
    """Rows of equal width from 100 % down to 0, and the meaning of every character."""

    rows: tuple[str, ...]
    layers: tuple[tuple[Layer, ...], ...]
    distance_at: int | None
    """The column of the largest distance."""


def draw(
    points: Sequence[CurvePoint], farthest: CurveDistance | None, *, width: int, height: int, ascii_only: bool
) -> Picture:
    """Return the curves of `points` in `width` × `height` characters: time to the right up to the last point, shares
    upwards.
    """
    canvas = _Canvas(points[-1].time_us if points else 0.0, width, height, signs(ascii_only=ascii_only))
    times = [0.0, *(point.time_us for point in points)]
    if points and points[0].peers_low is not None:
        low, median, high = (
            [0.0, *(getattr(point, name) for point in points)] for name in ("peers_low", "peers_median", "peers_high")
        )
        canvas.fill("band", times, low, high)
        canvas.rising("median", times, median)
    at = None
    if farthest is not None:
        at = canvas.column(farthest.time_us)
        canvas.upright(at, farthest.completed, farthest.peer_completed)
    canvas.line(times, [0.0, *(point.completed for point in points)])
    return Picture(canvas.rows(), canvas.layers(), at)


def draw_shares(
    steps: Sequence[tuple[float, float]], *, begin: float, width: int, height: int, ascii_only: bool
) -> tuple[str, ...]:
    """Return a distribution function in `width` × `height` characters, from `begin` to its last value.

    `steps` are (value, share up to it), the lowest value first.
    """
    canvas = _Canvas(steps[-1][0] - begin, width, height, signs(ascii_only=ascii_only))
    places, shares = [0.0], [0.0]
    for value, share in steps:
        places += [value - begin, value - begin]
        shares += [shares[-1], share]
    canvas.line(places, shares)
    return canvas.rows()


class _Canvas:
    """Cells of a picture; each shows its topmost layer."""

    def __init__(self, end_us: float, width: int, height: int, drawn_with: Signs) -> None:
        self._end_us, self._width, self._height, self._signs = max(end_us, 1e-9), width, height, drawn_with
        self._layers: list[list[Layer]] = [[""] * width for _ in range(height)]
        self._bits = [[0] * width for _ in range(height)]

    def column(self, time_us: float) -> int:
        """Return the column of a time."""
        return min(int(time_us / self._end_us * self._width), self._width - 1)

    def fill(self, layer: Layer, times: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        """Fill the space between two curves, at least one character per column."""
        for column in range(self._width):
            time = self._time(column + 0.5, self._width)
            self._column(layer, column, _at(times, low, time), _at(times, high, time))

    def rising(self, layer: Layer, times: Sequence[float], shares: Sequence[float]) -> None:
        """Draw a connected curve in whole characters."""
        for column in range(self._width):
            begin, end = self._time(column, self._width), self._time(column + 1, self._width)
            self._column(layer, column, _at(times, shares, begin), _at(times, shares, end))

    def upright(self, column: int, low: float, high: float) -> None:
        """Draw a line from one share to another."""
        self._column("distance", column, min(low, high), max(low, high))

    def line(self, times: Sequence[float], shares: Sequence[float]) -> None:
        """Draw a connected curve, in dots if there is no character for it."""
        across, down = (1, 1) if self._signs.rank else (2, 4)
        before: int | None = None
        for dot in range(self._width * across):
            share = _at(times, shares, self._time(dot + 0.5, self._width * across))
            row = self._row(share, self._height * down)
            for place in _from_to(row, before):
                self._layers[place // down][dot // across] = "rank"
                self._bits[place // down][dot // across] |= _DOTS[dot % across][place % down]
            before = row

    def rows(self) -> tuple[str, ...]:
        """Return the rows of characters."""
        of_layer = {"": " ", "band": self._signs.band, "median": self._signs.median, "distance": self._signs.distance}
        return tuple(
            "".join(
                of_layer[layer] if layer != "rank" else self._signs.rank or chr(_BRAILLE + bits)
                for layer, bits in zip(layers, row, strict=True)
            )
            for layers, row in zip(self._layers, self._bits, strict=True)
        )

    def layers(self) -> tuple[tuple[Layer, ...], ...]:
        """Return the meanings of the characters."""
        return tuple(map(tuple, self._layers))

    def _time(self, place: float, places: int) -> float:
        return place / places * self._end_us

    def _column(self, layer: Layer, column: int, low: float, high: float) -> None:
        for row in range(self._row(high, self._height), self._row(low, self._height) + 1):
            self._layers[row][column] = layer

    @staticmethod
    def _row(share: float, rows: int) -> int:
        return min(max(int((1 - share) * rows), 0), rows - 1)


def _from_to(row: int, before: int | None) -> range:
    """Return the rows that a rising connected curve adds in one column, up to the row drawn before."""
    return range(row, row + 1) if before is None or before <= row else range(row, before)


def _at(times: Sequence[float], values: Sequence[float], time: float) -> float:
    """Return the value at a time between the known ones."""
    right = min(bisect_left(times, time), len(times) - 1)
    left = max(right - 1, 0)
    span = times[right] - times[left]
    part = (time - times[left]) / span if span > 0 else 1.0
    return values[left] + (values[right] - values[left]) * min(max(part, 0.0), 1.0)


_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def mark_sign(*, ascii_only: bool) -> str:
    """Return the mark for a place on a bar."""
    return "|" if ascii_only else "┃"


def bar(value: float, mark: float | None, peak: float, width: int, *, ascii_only: bool) -> str:
    """Return `value` as a bar of which `width` characters stand for `peak`, with a mark at `mark`."""
    if peak <= 0 or width < 1:
        return ""
    eighths = round(min(max(value / peak, 0.0), 1.0) * width * 8)
    drawn = "#" * round(eighths / 8) if ascii_only else "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    if mark is None:
        return drawn
    at = min(round(min(max(mark / peak, 0.0), 1.0) * width), width - 1)
    return f"{drawn[:at].ljust(at)}{mark_sign(ascii_only=ascii_only)}{drawn[at + 1 :]}"


RAMP = " ▁▂▃▄▅▆▇█"
RAMP_ASCII = " .:-=+*#%@"


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


def heat_row(
    counts: Sequence[float],
    peak: float,
    width: int,
    *,
    ascii_only: bool,
    together: Callable[[Sequence[float]], float] = mean,
) -> str:
    """Return `counts` drawn in at most `width` glyphs, the darkest at `peak`; only zero is blank."""
    ramp = RAMP_ASCII if ascii_only else RAMP
    return "".join(ramp[level(value, peak, len(ramp))] for value in resampled(counts, width, together))


def resampled(counts: Sequence[float], width: int, together: Callable[[Sequence[float]], float] = mean) -> list[float]:
    """Return at most `width` values, each of equal stretches of `counts` put `together`."""
    return [together(counts[part.start : part.stop]) for part in stretches(len(counts), width)]


def stretches(length: int, most: int) -> list[range]:
    """Return the numbers below `length` in at most `most` stretches of nearly equal length."""
    size = min(length, max(most, 1))
    edges = [round(index * length / size) for index in range(size + 1)] if size else []
    return [range(low, high) for low, high in pairwise(edges)]


def level(value: float, peak: float, levels: int) -> int:
    """Return the level among `levels`; only zero has the lowest."""
    if value <= 0 or peak <= 0:
        return 0
    return max(1, min(levels - 1, round(value / peak * (levels - 1))))
