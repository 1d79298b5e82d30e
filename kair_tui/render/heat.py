"""A row of counts as glyphs of growing darkness."""

from collections.abc import Callable, Sequence
from itertools import pairwise

RAMP = " ▁▂▃▄▅▆▇█"
RAMP_ASCII = " .:-=+*#%@"


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def heat_row(
    counts: Sequence[float],
    peak: float,
    width: int,
    *,
    ascii_only: bool,
    together: Callable[[Sequence[float]], float] = mean,
) -> str:
    """`counts` drawn in at most `width` glyphs, the darkest at `peak`; only zero is blank."""
    ramp = RAMP_ASCII if ascii_only else RAMP
    return "".join(_glyph(value, peak, ramp) for value in resampled(counts, width, together))


def resampled(counts: Sequence[float], width: int, together: Callable[[Sequence[float]], float] = mean) -> list[float]:
    """Equal stretches of `counts` put `together`, so that at most `width` values are left."""
    size = min(len(counts), max(width, 1))
    edges = [round(index * len(counts) / size) for index in range(size + 1)] if size else []
    return [together(counts[low:high]) for low, high in pairwise(edges)]


def _glyph(value: float, peak: float, ramp: str) -> str:
    if value <= 0 or peak <= 0:
        return ramp[0]
    return ramp[max(1, min(len(ramp) - 1, round(value / peak * (len(ramp) - 1))))]
