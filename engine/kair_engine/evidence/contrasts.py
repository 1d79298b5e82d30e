"""Compares a rank's readings with its peers', window by window, and converts the difference to µs of a step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.evidence.parts import GPU_IDLE, Sign, Size
from kair_engine.evidence.series import Combined, Readings, Series, by_rank, combined
from kair_engine.frozen import dataclass
from kair_engine.stats import known_median
from kair_engine.trace.measures import MEASURES

_ONE_BY_ONE: Final = 64
"""Up to this many healthy ranks, each is compared with all the others; with more, leaving one out changes no median."""
_LANE_BYTES_PER_S: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bandwidth of one lane by PCIe generation, in one direction (PCI-SIG)."""
ESTIMATED: Final = "process_wait_time"
"""A counter estimated by sampling: each look counts for the time since the last one."""
_LOOKS: Final = 60
"""Looks that an estimate is averaged over, where the time before or since the onset has as many."""
_SURE: Final = 1.645
"""Standard errors: a normal variable exceeds this many in one of twenty cases."""
_LOWER_WHEN_IDLE: Final = frozenset(("gpu_sm_clock", "gpu_memory_clock", "gpu_pcie_generation"))
_BUSY: Final = 0.5
"""Busy share of a reading's time from which its clock counts as that of a working device."""


@dataclass(frozen=True)
class Looked:
    """The accused rank (first), healthy peers, and the windows that they are compared in."""

    ranks: tuple[int, ...]
    edges_ns: Ints
    step_us: float
    peers_own_us: float
    """Own time of the peers per step, in µs."""
    readings: Readings
    onset_ns: int | None = None
    """When the finding began (Unix ns); None if it showed from the first step."""

    @property
    def windows(self) -> int:
        """Return the number of windows."""
        return len(self.edges_ns) - 1

    def values(self, measure: str, how: Combined, of: Sign | Size | None = None) -> Floats:
        """Return a measure as (ranks × windows), NaN where it is not known."""
        texts = None if of is None else of.texts
        found = {}
        for rank in self.ranks:
            series = self.readings.of(measure, rank, texts)
            if isinstance(of, Sign) and of.contrast == "bits":
                are_set = ((one, one.value.astype(np.int64) & of.bits != 0) for one in series)
                series = [replace(one, value=is_set.astype(np.float64)) for one, is_set in are_set]
            if measure in _LOWER_WHEN_IDLE:
                series = self._at_work(rank, series)
            if series:
                found[rank] = combined(series, self.edges_ns, how)
            if texts is not None and (every := self.readings.of(measure, rank)):
                # If the counter was sampled and a text is absent, its count was 0.
                none = np.where(np.isnan(combined(every, self.edges_ns, how)), np.nan, 0.0)
                found[rank] = np.fmax(found.get(rank, none), none)
        return by_rank(found, self.ranks, self.windows)

    def estimated(self, values: Floats, looks_ns: float) -> tuple[Floats, Floats]:
        """Return the mean and the error (95 %), both (ranks × windows), of a measure sampled every `looks_ns`.

        Each mean covers the windows around it, but never mixes times before and after the onset.
        """
        looks = float(self.edges_ns[-1] - self.edges_ns[0]) / self.windows / max(looks_ns, 1.0)
        begins = 0 if self.onset_ns is None else int(np.searchsorted(self.edges_ns[1:], self.onset_ns, side="right"))
        parts = [_mean_around(one, math.ceil(_LOOKS / looks)) for one in (values[:, :begins], values[:, begins:])]
        mean, windows = (np.concatenate(some, axis=1) for some in zip(*parts, strict=True))
        looked = windows * looks
        # With few looks, real waits may all have been missed (Laplace's rule).
        share = (np.clip(mean, 0, 1) * looked + 1) / (looked + 2)
        return mean, _SURE * np.sqrt(share * (1 - share) / (looked + 2))

    def _at_work(self, rank: int, series: Sequence[Series]) -> list[Series]:
        """Drop readings of an idle device, which lowers its clocks and its link by itself."""
        idle = self.readings.of("gpu_throttle_reasons", rank)
        used = self.readings.of("gpu_utilization", rank)
        return [_while(_while(one, idle, _is_awake), used, _is_busy) for one in series]


def _mean_around(values: Floats, several: int) -> tuple[Floats, Floats]:
    """Return, per column, the mean of the known values in `several` columns around it, and how many these were.

    Unknown values stay NaN.
    """
    columns = values.shape[1]
    first = np.clip(np.arange(columns) - several // 2, 0, max(columns - several, 0))
    last = np.minimum(first + several, columns)
    known = ~np.isnan(values)
    nothing = np.zeros((len(values), 1))
    sums = np.concatenate((nothing, np.cumsum(np.where(known, values, 0.0), axis=1)), axis=1)
    counts = np.concatenate((nothing, np.cumsum(known, axis=1)), axis=1)
    of = counts[:, last] - counts[:, first]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (sums[:, last] - sums[:, first]) / of
    return np.where(known, means, np.nan), of


def _is_awake(values: Floats) -> Bools:
    return np.asarray(values.astype(np.int64) & GPU_IDLE == 0)


def _is_busy(values: Floats) -> Bools:
    return np.asarray(values >= _BUSY)


def _while(series: Series, others: Sequence[Series], holds: Callable[[Floats], Bools]) -> Series:
    """Return the readings at which another measure's latest reading satisfies `holds`."""
    if not others or not len(others[0].time_ns) or not len(series.time_ns):
        return series
    other = others[0]
    at = np.searchsorted(other.time_ns, series.time_ns, side="right") - 1
    kept = (at < 0) | holds(other.value[np.maximum(at, 0)])
    if not kept.any():
        return series
    return replace(series, time_ns=series.time_ns[kept], value=series.value[kept])


def peers_of(values: Floats) -> Floats:
    """Return (ranks × windows): row 0 has the healthy ranks' median, each other row that of the other ranks."""
    innocent = values[1:]
    result = np.full_like(values, np.nan)
    result[0] = known_median(innocent)
    if len(innocent) <= _ONE_BY_ONE:
        for at in range(len(innocent)):
            result[at + 1] = known_median(np.delete(innocent, at, axis=0))
    else:
        result[1:] = result[0]
    return result


def predicted_us(looked: Looked, size: Size) -> Floats:
    """Return the excess per step over the peers that a measure predicts, (ranks × windows) in µs; NaN if unknown."""
    own = looked.values(size.measure, size.combined, size)
    if size.less is not None:
        own = np.maximum(own - np.nan_to_num(looked.values(size.less, "sum")), 0.0)
    if size.plus is not None:
        own = own + np.nan_to_num(looked.values(size.plus, "sum"))
    peers = peers_of(own)
    with np.errstate(divide="ignore", invalid="ignore"):
        if size.sized_as == "time":
            return (own - peers) * looked.step_us
        if size.sized_as == "clock":
            return looked.peers_own_us * (peers / own - 1)
        if size.sized_as == "share":
            more = np.clip(own - np.nan_to_num(peers), 0.0, 0.99)
            return looked.peers_own_us * more / (1 - more)
        if size.sized_as == "link":
            return _of_link(looked, own, peers)
        return _of_pcie(looked, own)


def _of_link(looked: Looked, speed: Floats, peers: Floats) -> Floats:
    """Return the extra µs that a step's bytes need on a slower link; `speed` in Gb/s, traffic is the busier
    direction's.
    """
    sent, received = (looked.values(name, "sum") for name in ("nic_sent", "nic_received"))
    per_step = np.fmax(sent, received) * looked.step_us / 1e6
    bytes_per_s = 1e9 / 8
    return per_step * (1 / (speed * bytes_per_s) - 1 / (peers * bytes_per_s)) * 1e6


def _of_pcie(looked: Looked, received: Floats) -> Floats:
    """Return the extra µs that a step's bytes need over fewer or slower lanes; traffic is the busier direction's."""
    sent = looked.values("gpu_pcie_sent", "most")
    per_step = np.fmax(sent, received) * looked.step_us / 1e6
    width, generation = (looked.values(f"gpu_pcie_{name}", "least") for name in ("width", "generation"))
    lane = np.full_like(generation, np.nan)
    for number, bytes_per_s in _LANE_BYTES_PER_S.items():
        lane[np.round(generation) == number] = bytes_per_s
    own = width * lane
    return per_step * (1 / own - 1 / peers_of(own)) * 1e6


@dataclass(frozen=True)
class Held:
    """Where a contrast with the peers holds, and where it can be judged: (ranks × windows) each."""

    there: Bools
    known: Bools


def holds(looked: Looked, sign: Sign, least_us: float) -> Held:
    """Return where a contrast with the peers holds, window by window.

    Measures in seconds must exceed the peers' by `least_us` of a step, and estimates by their error as well. Numbers
    and amounts must be beyond every peer's. A bit must be set half of the time more than on the peers.
    """
    own = looked.values(sign.measure, sign.combined, sign)
    off = np.zeros_like(own)
    if sign.measure == ESTIMATED:
        own, off = looked.estimated(own, _looks_ns(looked, sign))
    peers = peers_of(own)
    known = ~np.isnan(own) & ~np.isnan(peers)
    with np.errstate(invalid="ignore"):
        if sign.contrast == "bits":
            there = own - peers >= _BUSY
        elif MEASURES[sign.measure].unit == "s":
            there = ((own - peers + off) * looked.step_us >= least_us) & (own - peers > off)
        else:
            there = own < _extremes(own, least=True) if sign.contrast == "less" else own > _extremes(own, least=False)
    return Held(there & known, known)


def _looks_ns(looked: Looked, sign: Sign) -> float:
    """Return the sampling interval (ns) of the source on the accused rank that saw the sign, else the longest one
    there.
    """
    rank = looked.ranks[0]
    series = looked.readings.of(sign.measure, rank, sign.texts) or looked.readings.of(sign.measure, rank)
    return max((one.source.interval_s or 0.0 for one in series), default=0.0) * 1e9


def _extremes(values: Floats, *, least: bool) -> Floats:
    """Return (ranks × windows): row 0 has the healthy ranks' extreme, each other row that of the other ranks."""
    innocent = np.where(np.isnan(values[1:]), np.inf if least else -np.inf, values[1:])
    result = np.full_like(values, np.nan)
    if not len(innocent):
        return result
    ordered = np.sort(innocent, axis=0) if least else -np.sort(-innocent, axis=0)
    result[0] = ordered[0]
    if len(innocent) > 1:
        result[1:] = np.where(innocent == ordered[0], ordered[1], ordered[0])
    return result
