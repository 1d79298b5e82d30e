"""Compares a suspect's probe with those of its peers: how much slower it is, and how sure that is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.errors import InputError
from kair_engine.probe.recording import Recording, Series, busy_warning, is_busy
from kair_engine.probe.summary import measurement, summary
from kair_engine.results.runs.probe import (
    Measurement,
    MeasureName,
    ProbedMachine,
    ProbeResult,
    ProbeVerdict,
    RowVerdict,
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
    """The suspect's measurements beside its peers'. Raises InputError where they measured different things."""
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
        verdict=_row_verdict(name, low, high) if _can_tell(name, suspect, peers) else "cannot_tell",
    )


def _series(recording: Recording, name: MeasureName) -> Series:
    found = recording.find(name)
    assert found is not None  # only names that all recordings have are compared
    return found


def _slowdown(series: Series, ours: Floats, theirs: Floats) -> Floats:
    """The time over the peers' time; rates are the inverse of a time."""
    return ours / theirs if series.unit == "us" else theirs / ours


def _drawn_peers(peers: Sequence[Series], rng: np.random.Generator) -> Floats:
    """The peers' median in every draw. From three peers on the peers are drawn too: they differ among themselves."""
    medians = np.stack([_drawn_medians(one, rng) for one in peers])
    if len(peers) >= 3:
        chosen = rng.integers(len(peers), size=medians.shape)
        medians = np.take_along_axis(medians, chosen, axis=0)
    return np.asarray(np.median(medians, axis=0))


def _drawn_medians(series: Series, rng: np.random.Generator) -> Floats:
    """The medians of DRAWS bootstrap draws of blocks (Künsch 1989), an eighth of the time each.

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


def _can_tell(name: MeasureName, suspect: Recording, peers: Sequence[Recording]) -> bool:
    """Whether there is enough of it, and from apart."""
    fewest = min(len(_series(of, name).values) for of in (suspect, *peers))
    return fewest >= FEWEST_VALUES and not (_on_busy_peer(peers, name) or _measured_together(suspect, peers, name))


def _on_busy_peer(peers: Sequence[Recording], name: MeasureName) -> bool:
    """Whether others took a peer's cores; where they take the suspect's, that is what makes it slow."""
    return not name.startswith(("gpu", "all_reduce")) and any(is_busy(peer.machine) for peer in peers)


def _row_verdict(name: MeasureName, low: float, high: float) -> RowVerdict:
    healthy = HEALTHY_SLOWDOWN[name]
    if low > healthy:
        return "slower"
    return "as_fast" if high <= healthy else "cannot_tell"


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
        found.append(
            KairWarning("not_in_all_probes", f"not compared, since not all probes have it: {_listed(lacking)}")
        )
    if any(_measured_together(suspect, peers, name) for name in names):
        text = (
            "the suspect and a peer took part in the same all-reduce, which is as slow for both: launch each with a "
            "healthy machine of its own"
        )
        found.append(KairWarning("link_measured_together", text))
    differing = [what for what, of in _circumstances(everyone) if len(set(of)) > 1]
    if differing:
        found.append(KairWarning("probed_differently", f"the probes differ in {_listed(differing)}"))
    found += [busy_warning(one.machine) for one in everyone if is_busy(one.machine)]
    if any(one.machine == suspect.machine for one in peers):
        found.append(KairWarning("same_probe", "the suspect's probe is compared with itself"))
    return found


def _circumstances(everyone: Sequence[Recording]) -> list[tuple[str, list[object]]]:
    machines = [one.machine for one in everyone]
    return [
        ("the number of cores", [one.cpus for one in machines]),
        ("the limit on cores", [one.counters.cpu_quota for one in machines]),
        *_versions(machines),
    ]


def _versions(machines: Sequence[ProbedMachine]) -> list[tuple[str, list[object]]]:
    libraries = sorted({library for one in machines for library in one.versions})
    return [(f"the version of {name}", [one.versions.get(name) for one in machines]) for name in libraries]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
