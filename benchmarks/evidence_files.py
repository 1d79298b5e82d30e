"""How long the evidence that capture sampled of a job takes to load: as agents deliver it, and joined.

    python benchmarks/evidence_files.py --hosts 64 --files 200

Makes a job's folder in which each host has delivered files of a minute, of eight ranks on a host without devices, which
say 2,000 things a minute; loads it as commands do, joins it as each host's agent does, and loads that. What loads is a
process of its own.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from measuring import Row, report, run_child, say

from kair_capture.agent.telemetry.joining import DeliveredFiles, in_order
from kair_capture.agent.telemetry.pacing import EACH, PACES, SELDOM
from kair_capture.agent.telemetry.rows import Rows, Series
from kair_capture.places import JobPlaces
from kair_engine.trace.evidence_table import SCHEMA, EvidenceFile, write_evidence
from kair_engine.trace.measures import HOST, process

RANKS = 8
BEGIN_NS = 1_790_000_000 * 10**9
MINUTE_NS = 60 * 10**9
EACH_SECOND = ("process_cpu_time", "process_run_delay", "process_wait_time")
SELDOM_SAID = ("process_memory", "process_swapped", "process_cores", "process_nice", "threads", "loader_workers")
OF_HOST = ("psi_cpu_time", "psi_io_time", "psi_memory_time", "memory_available", "disk_read", "major_faults")
LOAD = """
import sys, time
from pathlib import Path
from kair_engine.recording.evidence_files import stored_evidence
begin = time.perf_counter()
found, warnings = stored_evidence(Path(sys.argv[1]))
print(time.perf_counter() - begin, len(found.table), len(found.sources), len(warnings))
"""


def minute_of(host: str) -> EvidenceFile:
    """What a host says in the first minute; the text of what a thread waits in is one of a few."""
    rows, random = Rows(host, PACES), np.random.default_rng(len(host))
    of_ranks = [
        Series(process(1000 + rank), name, EACH, rank, text="read of /data (nfs)" if "wait" in name else None)
        for rank in range(RANKS)
        for name in EACH_SECOND
    ]
    seldom = [Series(process(1000 + rank), name, SELDOM, rank) for rank in range(RANKS) for name in SELDOM_SAID]
    of_host = [Series(HOST, name, EACH) for name in OF_HOST]
    for second in range(60):
        now = BEGIN_NS + second * 10**9 + int(random.integers(10**8))
        rows.looked(EACH, now)
        for series in (*of_ranks, *of_host):
            rows.add(series, now, second + round(float(random.random()), 6))
        if second % PACES[SELDOM] == 0:
            rows.looked(SELDOM, now)
            for series in seldom:
                rows.add(series, now, 4096.0)
    found = rows.take(())
    assert found is not None
    return found


def later(first: EvidenceFile, minutes: int) -> EvidenceFile:
    """What it says so much later, of other values."""
    table = first.table
    changed = {
        "time_ns": table["time_ns"].to_numpy() + minutes * MINUTE_NS,
        "value": table["value"].to_numpy() + np.random.default_rng(minutes).random(len(table)).round(6),
    }
    for name, values in changed.items():
        table = table.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), pa.array(values))
    return EvidenceFile(table, first.sources)


def deliver(places: JobPlaces, hosts: int, files: int) -> None:
    """What agents do."""
    for number in range(hosts):
        host = f"node-{number:04}"
        folder, first = places.evidence / f"host={host}", minute_of(host)
        folder.mkdir(parents=True)
        for minute in range(files):
            ms = (BEGIN_NS + minute * MINUTE_NS) // 10**6
            write_evidence(folder / f"samples-{ms}.parquet", later(first, minute))


def join(places: JobPlaces, spool: Path) -> None:
    """What agents do after each delivery."""
    for folder in sorted(places.evidence.iterdir()):
        files = DeliveredFiles(spool / folder.name, *into(folder))
        for path in in_order(folder):
            files.keep(Path(shutil.copy(path, spool)))
            files.join()


def into(folder: Path) -> tuple[Callable[[Path, str], None], Callable[[str], None]]:
    """What puts a file there, and what removes one."""

    def put(path: Path, name: str) -> None:
        shutil.copy(path, folder / name)

    return put, lambda name: (folder / name).unlink()


def measure(places: JobPlaces, name: str) -> Row:
    """Loads it in a process of its own."""
    found = [path.stat().st_size for path in places.evidence.rglob("*.parquet")]
    took = run_child([sys.executable, "-c", LOAD, str(places.folder)])
    wall, rows, sources, warnings = map(float, took.stdout.split())
    say(f"{name}: {wall:.1f} s")
    return {
        "files": name,
        "number": len(found),
        "MB": sum(found) / 1e6,
        "rows": int(rows),
        "sources": int(sources),
        "warnings": int(warnings),
        "load s": wall,
        "CPU s": took.cpu_s,
        "peak MB": took.peak_mb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--files", type=int, default=200, help="of each host")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        places = JobPlaces(Path(work), "job")
        begin = time.perf_counter()
        deliver(places, options.hosts, options.files)
        say(f"delivered in {time.perf_counter() - begin:.0f} s")
        rows = [measure(places, "delivered")]
        spool = Path(work) / "spool"
        spool.mkdir()
        begin_s = time.process_time()
        join(places, spool)
        each_ms = (time.process_time() - begin_s) / (options.hosts * options.files) * 1e3
        rows.append(measure(places, "joined"))
    report("evidence of a job", rows, as_json=options.json, notes=[f"joining takes {each_ms:.1f} ms of CPU a file"])


if __name__ == "__main__":
    main()
