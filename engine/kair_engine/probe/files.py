"""Reads probes from files, which are untrusted: what they hold is checked, and its size bounded."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.probe.recording import FILE_VERSION, Recording, Series
from kair_engine.results.runs.probe import LinkState, MeasureName, ProbedMachine, Unit

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
    """The probe in a file (also a pipe). Raises InputError where it cannot be read, or is no probe."""
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
