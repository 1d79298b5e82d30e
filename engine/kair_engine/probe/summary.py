"""Sums a probe up: medians, quartiles, and whether a quantity was steady over time."""

import math
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.probe.recording import FILE_VERSION, Recording, Series
from kair_engine.results.runs.probe import Measurement, Pattern, ProbeResult

STEADY_BELOW: Final = 0.05
_RUNS_Z: Final = 3.0


def summary(recording: Recording) -> ProbeResult:
    """The recording as an answer, compared with nobody."""
    rows = tuple(measurement(one) for one in recording.series)
    return ProbeResult(FILE_VERSION, recording.machine, rows, recording.link, warnings=recording.warnings)


def measurement(series: Series) -> Measurement:
    """Median and quartiles of a series, and how it went over time."""
    values = np.asarray(series.values)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Measurement(series.name, series.work, series.unit, middle, low, high, pattern(values), series.values)


def pattern(values: Floats) -> Pattern:
    """Whether values in the order of time are steady, scattered or come in spells.

    In spells: neighbours lie on the same side of the median more often than chance allows (a sign test of all pairs
    of neighbours, z > 3).
    """
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    if high - low <= STEADY_BELOW * middle:
        return "steady"
    sides = np.sign(values - middle)
    sides = sides[sides != 0]
    pairs = len(sides) - 1
    if pairs < 1:
        return "scattered"
    alike = float(np.count_nonzero(sides[1:] == sides[:-1]))
    return "spells" if (alike - pairs / 2) / (math.sqrt(pairs) / 2) > _RUNS_Z else "scattered"
