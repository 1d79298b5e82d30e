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
    return "".join(ramp[level(value, peak, len(ramp))] for value in resampled(counts, width, together))


def resampled(counts: Sequence[float], width: int, together: Callable[[Sequence[float]], float] = mean) -> list[float]:
    """Equal stretches of `counts` put `together`, so that at most `width` values are left."""
    return [together(counts[part.start : part.stop]) for part in stretches(len(counts), width)]


def stretches(length: int, most: int) -> list[range]:
    """The numbers below `length` in at most `most` stretches, as equal as can be."""
    size = min(length, max(most, 1))
    edges = [round(index * length / size) for index in range(size + 1)] if size else []
    return [range(low, high) for low, high in pairwise(edges)]


def level(value: float, peak: float, levels: int) -> int:
    """Which of so many levels; only zero is the lowest."""
    if value <= 0 or peak <= 0:
        return 0
    return max(1, min(levels - 1, round(value / peak * (levels - 1))))
