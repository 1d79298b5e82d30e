"""Keep the signals of recorded takes, and ask the core of them: a change is tried on hundreds of jobs in a minute.

python validation/real/kept_signals.py keep TAKES --out SIGNALS.zip [--jobs 2]
python validation/real/kept_signals.py ask SIGNALS.zip... [--unmeasured] [--takes]

Kept are a job's tables as stage 1 has them (steps × ranks of each class, operator, and of what the kernel measured), in
µs, and what was truly wrong; no operation, and nothing that names a machine. `ask` says whom detect.py accuses by
these: that is before findings are priced and pass the gate, so it differs a little from what triage says of the takes.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from evaluate import open_take, recorded
from take_scoring import ENOUGH_STEPS, LARGE, NOTABLE, TRULY_SLOWER, guilty_ranks, mean_excess, score

from kair_engine.localize.detect import detect
from kair_engine.localize.excess_table import ExcessTable, OperatorTable, table_of
from kair_engine.localize.signals import Measured

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from kair_engine.arrays import Floats

NO_ANSWER: dict[str, Any] = {"verdict": "", "findings": []}
_ABSENT = np.zeros(0, np.int32)
_OF_RANKS = ("role", "unit", "host")


class Kept(NamedTuple):
    """One take: what it truly was, and its signals."""

    truth: dict[str, Any]
    table: ExcessTable
    measured: Measured


def main() -> int:
    """Run the command line; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep")
    keeping.add_argument("takes", type=Path, help="the folder that record.py filled")
    keeping.add_argument("--out", type=Path, required=True, help="the file to write")
    keeping.add_argument("--jobs", type=int, default=2, help="processes")
    asking = commands.add_parser("ask")
    asking.add_argument("signals", type=Path, nargs="+", help="files of `keep`")
    asking.add_argument("--unmeasured", action="store_true", help="without what capture asked the kernel")
    asking.add_argument("--takes", action="store_true", help="a line for every take that was answered wrongly")
    options = parser.parse_args()
    if options.command == "keep":
        keep(options.takes, options.out, jobs=options.jobs)
    else:
        ask(options.signals, measured=not options.unmeasured, each=options.takes)
    return 0


def keep(takes: Path, out: Path, *, jobs: int) -> None:
    """Write the signals of every take that can be read; the others are named."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(jobs) as processes,
        zipfile.ZipFile(out, "w") as archive,
    ):
        folders = recorded(takes, "0:1000000")
        for folder, kept in zip(folders, processes.map(partial(_packed, cache=Path(temporary)), folders), strict=True):
            if isinstance(kept, str):
                print(f"{folder.name}: {kept}", file=sys.stderr)
            else:
                archive.writestr(f"{folder.name}.npz", kept)
        sizes = [one.file_size for one in archive.infolist()]
    print(f"{len(sizes)} takes, {max(sizes) / 1e3:.0f} kB the largest, {sum(sizes) / 1e6:.1f} MB", file=sys.stderr)


def ask(files: Iterable[Path], *, measured: bool, each: bool) -> None:
    """Print how many of each kind of take are answered rightly."""
    rows: dict[str, list[bool]] = {}
    for file in files:
        for name, kept in read(file):
            found = detect(kept.table, kept.measured if measured else None).anomalies
            ranks = kept.truth["ranks_of_job"]
            accused = {ranks[place] for one in found for place in one.positions}
            for row, is_hit in _counted(kept.truth, accused).items():
                rows.setdefault(row, []).append(is_hit)
                if each and is_hit != row.startswith("found"):
                    print(f"{file.name} {name}: {row}: {kept.truth['fault']}, accused {sorted(accused)}")
    for row in sorted(rows):
        print(f"{row:32s} {sum(rows[row]):4d} of {len(rows[row])}")


def _counted(truth: Mapping[str, Any], accused: set[int]) -> dict[str, bool]:
    """In which rows of the table a take counts, and whether it does for the numerator."""
    innocents = {rank for rank in accused - set(truth["guilty"]) if truth["more"][rank] < TRULY_SLOWER}
    counted = {"accused of innocent ranks": bool(innocents)}
    if truth["kind"] == "healthy":
        counted["accused of healthy jobs"] = bool(accused)
    if truth["kind"] in {"fault", "two"}:
        found = bool(accused & set(truth["guilty"]))
        if truth["severity"] < NOTABLE:
            counted["found of faults below 10 %"] = found
        elif truth["steps"] < ENOUGH_STEPS:
            counted["found in fewer than 8 steps"] = found
        else:
            counted["found of 10 % and more"] = found
            if truth["severity"] >= LARGE:
                counted["found of 25 % and more"] = found
    return counted


def read(file: Path) -> Iterator[tuple[str, Kept]]:
    """(name, take) of every take of a file."""
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            yield name.removesuffix(".npz"), _unpacked(archive.read(name))


def _packed(folder: Path, *, cache: Path) -> bytes | str:
    """A take's signals, or why it cannot be read."""
    from kair_engine.errors import KairError
    from kair_engine.triage.look import look

    document = json.loads((folder / "take.json").read_text(encoding="utf-8"))
    try:
        seen = look(open_take(folder, cache))
    except KairError as error:
        return str(error)
    from kair_engine.triage.ranks.kernel_times import measured_signals

    job, kernel = seen.tables.excess, seen.kernel
    measured = measured_signals(job, kernel.processor, kernel.given, kernel.held)
    table = table_of(job)
    scored = score(document, NO_ANSWER)
    first = min((fault.get("onset") or 0 for fault in document["take"]["faults"]), default=0)
    truth = {name: getattr(scored, name) for name in ("seed", "kind", "fault", "load", "ranks", "steps", "severity")}
    truth |= {"guilty": sorted(guilty_ranks(document)), "ranks_of_job": job.ranks.tolist()}
    truth["more"] = [round(mean_excess(document, rank, first), 4) for rank in range(scored.ranks)]
    columns: dict[str, Any] = {
        "by_step": _us(table.by_step_ns),
        "times": _us(table.step_times_ns),
        "spent": _us(table.work_ns),
        "waiting": _us(job.exposed_waiting_ns),
        "work": _us(measured.work),
        "held_back": _ABSENT if measured.held_back is None else measured.held_back,
    }
    for name in _OF_RANKS:
        columns[name] = _ABSENT if (values := getattr(table, name)) is None else values.astype(np.int32)
    columns |= {f"kernel_{name}": _us(values) for name, values in measured.of_kernel.items()}
    operators = list(table.of_operator)
    if operators:
        columns["operators"] = np.stack([_us(table.of_operator[name].excess_ns) for name in operators])
        columns["typical"] = np.stack([_us(table.of_operator[name].typical_ns) for name in operators])
    truth |= {"operators": operators, "fetches": [table.of_operator[name].fetches for name in operators]}
    truth["on_device"] = bool(table.on_device)
    packed = io.BytesIO()
    np.savez_compressed(packed, truth=np.frombuffer(json.dumps(truth).encode(), np.uint8), **columns)
    return packed.getvalue()


def _unpacked(packed: bytes) -> Kept:
    columns = np.load(io.BytesIO(packed), allow_pickle=False)
    truth = json.loads(columns["truth"].tobytes())
    of_ranks = {name: columns[name].astype(np.int64) if columns[name].size else None for name in _OF_RANKS}
    operators = {
        name: OperatorTable(fetches, columns["operators"][at] * 1e3, columns["typical"][at] * 1e3)
        for at, (name, fetches) in enumerate(zip(truth["operators"], truth["fetches"], strict=True))
    }
    table = ExcessTable(
        by_step_ns=columns["by_step"] * 1e3,
        step_times_ns=columns["times"] * 1e3,
        work_ns=columns["spent"] * 1e3,
        of_operator=operators,
        on_device=truth["on_device"],
        exposed_waiting_ns=_ns(columns["waiting"]),
        **of_ranks,
    )
    kernel = {name.removeprefix("kernel_"): columns[name] * 1e3 for name in columns.files if name.startswith("kernel_")}
    held_back = columns["held_back"] if columns["held_back"].size else None
    return Kept(truth, table, Measured(kernel, _ns(columns["work"]), held_back))


def _us(values_ns: Floats | None) -> NDArray[np.int32]:
    """Rounded to µs."""
    return _ABSENT if values_ns is None else np.rint(values_ns / 1e3).astype(np.int32)


def _ns(values_us: NDArray[np.int32]) -> Floats | None:
    return values_us * 1e3 if values_us.size else None


if __name__ == "__main__":
    sys.exit(main())
