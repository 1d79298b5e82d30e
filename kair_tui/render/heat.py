"""A row of counts as glyphs of growing darkness."""

from collections.abc import Sequence
from itertools import pairwise

RAMP = " ▁▂▃▄▅▆▇█"
RAMP_ASCII = " .:-=+*#%@"


def heat_row(counts: Sequence[int], peak: float, width: int, *, ascii_only: bool) -> str:
    """`counts` drawn in at most `width` glyphs, the darkest at `peak`; only a mean of zero is blank."""
    ramp = RAMP_ASCII if ascii_only else RAMP
    return "".join(_glyph(value, peak, ramp) for value in resampled(counts, width))


def resampled(counts: Sequence[int], width: int) -> list[float]:
    """Means of equal stretches of `counts`, so that at most `width` are left."""
    size = min(len(counts), max(width, 1))
    edges = [round(index * len(counts) / size) for index in range(size + 1)] if size else []
    return [sum(counts[low:high]) / (high - low) for low, high in pairwise(edges)]


def _glyph(value: float, peak: float, ramp: str) -> str:
    if value <= 0 or peak <= 0:
        return ramp[0]
    return ramp[max(1, min(len(ramp) - 1, round(value / peak * (len(ramp) - 1))))]
