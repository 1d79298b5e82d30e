"""Compares a suspect's probe with those of its peers: how much slower it is, and how sure that is.

Sums a probe up: medians, quartiles, and whether a quantity was steady over time.

Reads probes from files, which are untrusted: what they hold is checked, and its size bounded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kair_engine.arrays import Floats
from kair_engine.errors import InputError
from kair_engine.probe.recording import FILE_VERSION, Recording, Series, busy_warning
from kair_engine.results.probe import (
    LinkState,
    Measurement,
    MeasureName,
    Pattern,
    ProbedMachine,
    ProbeResult,
    ProbeVerdict,
    RowVerdict,
    Unit,
)
from kair_engine.trace.model import KairWarning

ERROR_RATE: Final = 0.01
DRAWS: Final = 10_000
BLOCKS: Final = 8
FEWEST_VALUES: Final = 8
DEVICES_DIFFER: Final = 1.08
LINKS_DIFFER: Final = 1.25
WAKE_UPS_DIFFER: Final = 2.0
_AT_ONCE: Final = 2_000_000
"""Drawn values held at once, 16 MB."""

HEALTHY_SLOWDOWN: Final[Mapping[MeasureName, float]] = {
    "gpu_matrix_product": DEVICES_DIFFER,
    "gpu_memory_copy": DEVICES_DIFFER,
    "cpu_matrix_product": DEVICES_DIFFER,
    "cpu_memory_copy": DEVICES_DIFFER,
    "python_loop": DEVICES_DIFFER,
    "wake_up": WAKE_UPS_DIFFER,
    "all_reduce_64_kib": LINKS_DIFFER,
    "all_reduce_1_mib": LINKS_DIFFER,
    "all_reduce_16_mib": LINKS_DIFFER,
}
"""By how much healthy machines of one type differ."""


def compared(suspect: Recording, peers: Sequence[Recording], seed: int = 0) -> ProbeResult:
    """Compare the suspect's measurements with its peers'. Raises InputError if they measured different things."""
    for peer in peers:
        _require_same_kind(suspect, peer)
    names = [one.name for one in suspect.series if all(peer.find(one.name) for peer in peers)]
    if not names:
        raise InputError("the probes have no measurement in common", "probe them with the same --device")
    rng = np.random.default_rng(seed)
    rows = tuple(_row(name, suspect, peers, ERROR_RATE / len(names), rng) for name in names)
    return replace(
        summary(suspect),
        measurements=rows,
        peers=tuple(peer.machine for peer in peers),
        verdict=_verdict(rows),
        warnings=(*suspect.warnings, *_warnings(suspect, peers, names)),
    )


def _require_same_kind(suspect: Recording, peer: Recording) -> None:
    for kind in ("device", "processor"):
        ours, theirs = getattr(suspect.machine, kind), getattr(peer.machine, kind)
        if ours != theirs:
            raise InputError(
                f"the probes ran on different {kind}s: {ours!r} on {suspect.machine.host}, {theirs!r} on "
                f"{peer.machine.host}",
                f"choose a peer with the same {kind}",
            )
    for one in suspect.series:
        _require_same_work(one, peer.find(one.name), peer.machine.host)


def _require_same_work(ours: Series, theirs: Series | None, host: str) -> None:
    if theirs is None:
        return
    if ours.unit != theirs.unit:
        raise InputError(f"{ours.name} is in {ours.unit} for the suspect, in {theirs.unit} for {host}")
    if ours.work != theirs.work:
        raise InputError(
            f"{ours.name} measured different work: {ours.work!r} for the suspect, {theirs.work!r} for {host}",
            "probe both with the same version of Kair, the same --device and as many ranks",
        )


def _row(
    name: MeasureName, suspect: Recording, peers: Sequence[Recording], error_rate: float, rng: np.random.Generator
) -> Measurement:
    ours = _series(suspect, name)
    theirs = [_series(peer, name) for peer in peers]
    row = measurement(ours)
    peer_median = float(np.median([np.median(one.values) for one in theirs]))
    drawn = _slowdown(ours, _drawn_medians(ours, rng), _drawn_peers(theirs, rng))
    low, high = np.quantile(drawn, (error_rate / 2, 1 - error_rate / 2)).tolist()
    return replace(
        row,
        peer_median=peer_median,
        slowdown=float(_slowdown(ours, np.asarray(row.median), np.asarray(peer_median))),
        slowdown_low=low,
        slowdown_high=high,
        verdict=_row_verdict(name, low, high, suspect, peers),
    )


def _series(recording: Recording, name: MeasureName) -> Series:
    found = recording.find(name)
    assert found is not None  # only names that all recordings have are compared
    return found


def _slowdown(series: Series, ours: Floats, theirs: Floats) -> Floats:
    """Return the time over the peers' time; rates are the inverse of a time."""
    return ours / theirs if series.unit == "us" else theirs / ours


def _drawn_peers(peers: Sequence[Series], rng: np.random.Generator) -> Floats:
    """Return the peers' median in every draw.

    From three peers on the peers are drawn too: they differ among themselves.
    """
    medians = np.stack([_drawn_medians(one, rng) for one in peers])
    if len(peers) >= 3:
        chosen = rng.integers(len(peers), size=medians.shape)
        medians = np.take_along_axis(medians, chosen, axis=0)
    return np.asarray(np.median(medians, axis=0))


def _drawn_medians(series: Series, rng: np.random.Generator) -> Floats:
    """Return the medians of DRAWS bootstrap draws of blocks (Künsch 1989), an eighth of the time each.

    Repetitions near one another are alike where a machine is slow in spells, so single ones must not be drawn.
    """
    values = np.asarray(series.values)
    length = -(-len(values) // BLOCKS)
    blocks = -(-len(values) // length)
    within = np.arange(length)
    at_once = max(_AT_ONCE // (blocks * length), 1)
    medians = [np.empty(0)]
    for done in range(0, DRAWS, at_once):
        starts = rng.integers(len(values), size=(min(at_once, DRAWS - done), blocks, 1))
        drawn = values[(starts + within) % len(values)].reshape(len(starts), -1)
        medians.append(np.median(drawn[:, : len(values)], axis=1))
    return np.concatenate(medians)


def _row_verdict(
    name: MeasureName, low: float, high: float, suspect: Recording, peers: Sequence[Recording]
) -> RowVerdict:
    """Return what the interval says, where there is enough of it, and from apart."""
    fewest = min(len(_series(of, name).values) for of in (suspect, *peers))
    # If others take the suspect's cores, that makes it slow; a peer's cores show nothing.
    on_busy_peer = not name.startswith(("gpu", "all_reduce")) and any(peer.machine.is_busy for peer in peers)
    if fewest < FEWEST_VALUES or on_busy_peer or _measured_together(suspect, peers, name):
        return "cannot_tell"
    healthy = HEALTHY_SLOWDOWN[name]
    return "slower" if low > healthy else "as_fast" if high <= healthy else "cannot_tell"


def _measured_together(suspect: Recording, peers: Sequence[Recording], name: MeasureName) -> bool:
    """Whether they took part in one all-reduce, which is as slow for every member."""
    launch = suspect.machine.launch
    return name.startswith("all_reduce") and any(launch == peer.machine.launch for peer in peers)


def _verdict(rows: Sequence[Measurement]) -> ProbeVerdict:
    """Links that were measured together say nothing of either, and do not keep the others from deciding."""
    verdicts = {row.verdict for row in rows if not (row.name.startswith("all_reduce") and row.verdict == "cannot_tell")}
    if "slower" in verdicts:
        return "confirmed"
    return "not_confirmed" if verdicts == {"as_fast"} else "cannot_tell"


def _warnings(suspect: Recording, peers: Sequence[Recording], names: Sequence[MeasureName]) -> list[KairWarning]:
    found = []
    everyone = (suspect, *peers)
    lacking = sorted({one.name for of in everyone for one in of.series} - set(names))
    if lacking:
        text = f"not compared, since not all probes have it: {', '.join(lacking)}"
        found.append(KairWarning("not_in_all_probes", text))
    if any(_measured_together(suspect, peers, name) for name in names):
        text = (
            "the suspect and a peer took part in the same all-reduce, which is as slow for both: launch each with a "
            "healthy machine of its own"
        )
        found.append(KairWarning("link_measured_together", text))
    differing = [what for what, of in _circumstances(everyone) if len(set(of)) > 1]
    if differing:
        found.append(KairWarning("probed_differently", f"the probes differ in {', '.join(differing)}"))
    found += [busy_warning(one.machine) for one in everyone if one.machine.is_busy]
    if any(one.machine == suspect.machine for one in peers):
        found.append(KairWarning("same_probe", "the suspect's probe is compared with itself"))
    return found


def _circumstances(everyone: Sequence[Recording]) -> list[tuple[str, list[object]]]:
    machines = [one.machine for one in everyone]
    libraries = sorted({library for one in machines for library in one.versions})
    found: list[tuple[str, list[object]]] = [
        ("the number of cores", [one.cpus for one in machines]),
        ("the limit on cores", [one.counters.cpu_quota for one in machines]),
    ]
    return found + [(f"the version of {name}", [one.versions.get(name) for one in machines]) for name in libraries]


STEADY_BELOW: Final = 0.05
_RUNS_Z: Final = 3.0


def summary(recording: Recording) -> ProbeResult:
    """Return the recording as an answer, compared with nobody."""
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


SCHEMA: Final = "kair.probe"
MAX_BYTES: Final = 16 << 20
MAX_VALUES: Final = 10_000
_MAX_TEXT: Final = 1_000
_WAY_OUT: Final = "kair probe --out FILE writes one"


@dataclass(frozen=True)
class _Measured:
    name: MeasureName
    work: str
    unit: Unit
    values: tuple[float, ...]


@dataclass(frozen=True)
class _Probe:
    """What is read of a file's `data`; the rest follows from it."""

    machine: ProbedMachine
    measurements: tuple[_Measured, ...]
    link: LinkState
    verdict: str | None = None


def read_probe(path: Path) -> Recording:
    """Return the probe in a file (also a pipe). Raises InputError where it cannot be read, or is no probe."""
    data = _data(_content(path), path)
    version = data.get("schema_version")
    if version != FILE_VERSION:
        raise InputError(f"{path} has schema_version {version!r}, this Kair reads {FILE_VERSION}", "probe again")
    try:
        probe = msgspec.convert(data, _Probe)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}", "probe again") from error
    if probe.verdict is not None:
        raise InputError(f"{path} is a comparison, not a probe", _WAY_OUT)
    _require_sound(probe, path)
    series = tuple(Series(one.name, one.work, one.unit, one.values) for one in probe.measurements)
    return Recording(probe.machine, series, probe.link)


def _content(path: Path) -> bytes:
    """All of it: the size of a pipe shows only in reading."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES >> 20} MiB: that is no probe", _WAY_OUT)
    return content


def _data(content: bytes, path: Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise InputError(f"{path} is not a probe: it is not JSON", _WAY_OUT) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a probe", _WAY_OUT)
    data = document.get("data")
    if not isinstance(data, dict):
        raise InputError(f"{path} is damaged: it has no data", "probe again")
    return data


def _require_sound(probe: _Probe, path: Path) -> None:
    names = [one.name for one in probe.measurements]
    if len(set(names)) < len(names):
        raise InputError(f"{path} is damaged: a measurement stands there twice", "probe again")
    machine = probe.machine
    texts = [machine.host, machine.device, machine.processor, machine.launch or "", machine.measured_at]
    texts += [*machine.versions, *machine.versions.values(), *(one.work for one in probe.measurements)]
    if max(map(len, texts)) > _MAX_TEXT or len(machine.versions) > _MAX_TEXT:
        raise InputError(f"{path} is damaged: a name in it is too long", "probe again")
    for one in probe.measurements:
        if not 1 <= len(one.values) <= MAX_VALUES:
            raise InputError(f"{path} is damaged: {one.name} has {len(one.values)} values", "probe again")
        if not all(math.isfinite(value) and value > 0 for value in one.values):
            raise InputError(f"{path} is damaged: {one.name} has a value that is not above zero", "probe again")
