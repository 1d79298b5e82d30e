"""Probes made by hand, and the files that hold them."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kair_engine.probe.recording import FILE_VERSION, Recording, Series
from kair_engine.ranks import Rank
from kair_engine.results.probe import HostCounters, MeasureName, ProbedMachine, Unit

UNITS: dict[MeasureName, Unit] = {
    "gpu_matrix_product": "gflop_per_s",
    "gpu_memory_copy": "gb_per_s",
    "cpu_matrix_product": "gflop_per_s",
    "cpu_memory_copy": "gb_per_s",
    "python_loop": "loops_per_s",
}
COUNTERS = HostCounters(0.01, 2.0, None, 0)


def machine(host: str = "node0", rank: int | None = None, **changes: Any) -> ProbedMachine:  # noqa: ANN401
    made = ProbedMachine(
        host=host,
        rank=None if rank is None else Rank(rank),
        world_size=1,
        launch=None,
        device="H100",
        processor="EPYC",
        cpus=16,
        versions={"numpy": "2.4.6"},
        measured_at="2026-11-22T07:00:00+00:00",
        seconds=5.0,
        counters=COUNTERS,
    )
    return replace(made, **changes)


def around(middle: float, spread: float = 0.01, count: int = 40) -> tuple[float, ...]:
    """Values about `middle` in an order that is neither sorted nor in spells."""
    return tuple(middle * (1 + spread * ((7 * number) % 11 - 5) / 5) for number in range(count))


def recording(of: ProbedMachine | None = None, **values: tuple[float, ...]) -> Recording:
    """A probe with these values by the names of measurements."""
    series = tuple(Series(name, "some work", UNITS.get(name, "us"), found) for name, found in values.items())  # type: ignore[arg-type, call-overload]
    return Recording(of or machine(), series, "one_rank")


def document(of: Recording) -> dict[str, Any]:
    """What its file holds."""
    data = {
        "schema_version": FILE_VERSION,
        "machine": asdict(of.machine),
        "measurements": [asdict(one) for one in of.series],
        "link": of.link,
    }
    return {"schema": "kair.probe", "version": "2.0", "data": data}


def written(path: Path, of: Recording) -> Path:
    path.write_text(json.dumps(document(of)))
    return path
