"""Warns of replays that are far off their recording."""

from collections.abc import Iterator

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.trace.model import KairWarning
from kair_engine.whatif.ratios import ratio

ERROR_GATE = 0.05
"""A replay that is further off than this share of the measured step is answered with a warning [W]."""
STEADY_ERROR_GATE = 0.02
"""A replay in steady state has this limit, as it keeps no delay only because it was recorded."""


def replay_error(delayed: Floats, measured: Floats) -> float:
    """Of the mean step: how far one replayed with all delays (steps) is off the measured one (steps)."""
    return abs(ratio(float(delayed.mean()), float(measured.mean())) - 1)


def inexact_replay(
    steps: tuple[int, ...], delayed: Floats, measured: Floats, off: float, gate: float = ERROR_GATE
) -> Iterator[KairWarning]:
    """A warning where the mean step is off by more than `gate`; `off` is the share that it names."""
    if replay_error(delayed, measured) <= gate:
        return
    worst = int(np.argmax(step_errors(delayed, measured)))
    replayed_us, recorded_us = float(delayed[worst]) / 1e3, float(measured[worst]) / 1e3
    figures = {"off": off, "worst_step": steps[worst], "replayed_us": replayed_us, "recorded_us": recorded_us}
    yield KairWarning("simulation_error", figures=figures)


def step_errors(delayed: Floats, measured: Floats) -> Floats:
    """Per step |replayed − measured| / measured."""
    return np.asarray(np.abs(delayed - measured) / np.maximum(measured, 1.0))
