"""`kair triage` of a job of one hour beside the telemetry of all its hosts of a whole day: CPU time and memory.

    python benchmarks/day_of_telemetry.py --hosts 1000 [--scraped 200]

Makes a watched job of one rank a host, of which one is stopped by its quota of CPU time in the second half of an hour
of the morning, and the telemetry of the day, six series a host, every 15 s: as agents deliver it, in files that hold
85 minutes each (the rank must be explained by it); as answers of Prometheus, one for each metric; and of so many hosts
as files of scrapes. Each is read by a process of its own; the first row is the same command without telemetry.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from measuring import Row, in_fresh_process, report, run_child, say

from kair_capture.agent.step_rows import ROW
from kair_capture.coordinator.step_log import write_part
from kair_capture.places import JobPlaces
from kair_engine.results.watch import Sampling, WatchedRank, WatchResult
from kair_engine.trace.evidence_table import SCHEMA, EvidenceFile, described, write_evidence
from kair_engine.trace.files import make_folder
from kair_engine.trace.measures import HOST, EvidenceSource, process

FORMS: Final = ("sampled", "answers", "scraped")
DAY_S: Final = 1_795_737_600
HOUR_S: Final = DAY_S + 7 * 3600
EVERY_S, FILES = 15, 17
STEPS, STEP_S, LONGER = 240, 15, 0.2
OF_PROCESS: Final = ("process_throttled_time", "process_cpu_time", "process_run_delay")
OF_HOST: Final = ("psi_cpu_time", "psi_io_time", "memory_available")
METRICS: Final = (
    "node_pressure_cpu_waiting_seconds_total", "node_pressure_io_waiting_seconds_total",
    "node_pressure_memory_waiting_seconds_total", "node_memory_MemAvailable_bytes", "node_load1",
    "node_vmstat_pgmajfault",
)  # fmt: skip
TIMES_S: Final = np.arange(DAY_S, DAY_S + 86_400, EVERY_S)


def host_name(number: int) -> str:
    return f"node-{number:04}"


def make_job(store: Path, hosts: int) -> int:
    """Make the job `job`; return its slow rank."""
    places, slow, random = JobPlaces(store, "job"), hosts * 2 // 3, np.random.default_rng(1)
    places.capture.mkdir(parents=True)
    make_folder(places.steps)
    own = 0.8 * STEP_S * 1e6 * (1 + 0.005 * random.standard_normal((STEPS, hosts)))
    own[STEPS // 2 :, slow] += STEP_S * LONGER * 1e6
    rows, longest = np.zeros(own.size, ROW), np.repeat(own.max(axis=1), hosts)
    rows["rank"], rows["step"] = np.tile(np.arange(hosts), STEPS), np.repeat(np.arange(STEPS), hosts)
    rows["begin_us"] = (HOUR_S + rows["step"].astype(np.int64) * STEP_S) * 10**6
    rows["step_us"], rows["self_us"], rows["waited_us"] = longest, own.ravel(), longest - own.ravel()
    write_part(places.steps / "part-00000001.parquet", rows)
    last = STEPS - 1
    ranks = tuple(WatchedRank(one, host_name(one), last, None, None, None, 0.0, slow=False) for one in range(hosts))
    now, sampling = datetime.now(UTC).isoformat(), Sampling(0.01, 0.0, 0, 0, 0, ())
    status = WatchResult("job", now, "over", last, None, None, hosts, ranks, (), (), sampling, {})
    places.status.write_bytes(msgspec.json.encode(status))
    return slow


def column(values: list[str], times: int) -> pa.Array:
    """Return a column that has these values at each time."""
    codes = np.tile(np.arange(len(values), dtype=np.int32), times)
    return pa.DictionaryArray.from_arrays(codes, pa.array(values))


def sampled(number: int, times_s: np.ndarray, *, is_slow: bool) -> EvidenceFile:
    """Return what the agent of a host says at these times."""
    names, series = (*OF_PROCESS, *OF_HOST), len(OF_PROCESS) + len(OF_HOST)
    values = np.random.default_rng(number).random((len(times_s), series)).round(3) + times_s[:, None] - DAY_S
    values[:, 0] = LONGER * np.clip(times_s - HOUR_S - 1800, 0, 1800) if is_slow else 0.0
    entities = [process(1000 + number)] * len(OF_PROCESS) + [HOST] * len(OF_HOST)
    count = len(times_s) * series
    ranks = pa.array(np.full(count, number, np.int32), mask=np.tile(np.arange(series) >= len(OF_PROCESS), len(times_s)))
    nothing = pa.nulls(count, SCHEMA.field("text").type)
    columns = {
        "time_ns": np.repeat(times_s * 10**9, series),
        "host": column([host_name(number)], count),
        "entity": pa.array(np.tile(entities, len(times_s))).dictionary_encode(),
        "rank": ranks,
        "source": np.zeros(count, np.int32),
        "name": pa.array(np.tile(names, len(times_s))).dictionary_encode(),
        "value": values.ravel(),
        "text": nothing,
        "raw": nothing,
    }
    source = EvidenceSource(
        f"capture, every {EVERY_S} s", "capture", "host", 1.0, float(EVERY_S), hosts=(host_name(number),)
    )
    return described(pa.table(columns, schema=SCHEMA), source)


def deliver(store: Path, hosts: int, slow: int) -> int:
    """Write what agents deliver and join; return how many rows that is."""
    rows = 0
    for number in range(hosts):
        folder = JobPlaces(store, "job").evidence / f"host={host_name(number)}"
        folder.mkdir(parents=True)
        for times in np.array_split(TIMES_S, FILES):
            content = sampled(number, times, is_slow=number == slow)
            write_evidence(folder / f"joined-{times[0] * 1000}.parquet", content)
            rows += len(content.table)
    return rows


def answer(folder: Path, hosts: int) -> int:
    """Write answers of Prometheus."""
    folder.mkdir()
    for metric in METRICS:
        with (folder / f"{metric}.json").open("w") as file:
            file.write('{"status":"success","data":{"resultType":"matrix","result":[')
            for number in range(hosts):
                labels = json.dumps({"__name__": metric, "instance": f"{host_name(number)}:9100"})
                values = ",".join(f'[{at},"{at - DAY_S}"]' for at in TIMES_S.tolist())
                file.write(f'{"," if number else ""}{{"metric":{labels},"values":[{values}]}}')
            file.write("]}}")
    return hosts * len(METRICS) * len(TIMES_S)


def scrape(folder: Path, hosts: int) -> int:
    """Write scrapes of each host into one file."""
    folder.mkdir()
    for number in range(hosts):
        labels = f'{{instance="{host_name(number)}:9100",job="node"}}'
        scrapes = (
            f"# time {at}\n" + "".join(f"{metric}{labels} {at - DAY_S}\n" for metric in METRICS)
            for at in TIMES_S.tolist()
        )
        (folder / f"{host_name(number)}.prom").write_text("".join(scrapes))
    return hosts * len(METRICS) * len(TIMES_S)


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def measure(name: str, rows: int, store: Path, slow: int, named: Path | None = None) -> Row:
    """Ask for the verdict. Raises SystemExit where it names another rank, or does not see what agents delivered."""
    command = [sys.executable, "-m", "kair_tui", "triage", "job", "--store", str(store), "--json"]
    took = run_child([*command, *(["--evidence", str(named)] if named is not None else [])])
    data = json.loads(took.stdout)["data"]
    (finding,) = data["findings"]
    words = {one["part"]: one["word"] for one in finding["explanations"]}
    if finding["ranks"] != [slow] or (name == "sampled" and words.get("cpu_quota") != "explains"):
        raise SystemExit(f"{name}: ranks {finding['ranks']}, {words}")
    say(f"{name}: {took.cpu_s:.1f} s")
    folder = named or JobPlaces(store, "job").evidence
    return {
        "telemetry": name,
        "rows of the day": rows,
        "MB": size_mb(folder) if rows else 0.0,
        "CPU s": took.cpu_s,
        "peak MB": took.peak_mb,
    }


def rows_of(work: Path, hosts: int, scraped: int, forms: Collection[str]) -> Iterator[Row]:
    """Measure one form of telemetry after another."""
    bare, store = work / "bare", work / "store"
    slow = in_fresh_process(make_job, bare, hosts)
    yield measure("none", 0, bare, slow)
    if "sampled" in forms:
        in_fresh_process(make_job, store, hosts)
        yield measure("sampled", in_fresh_process(deliver, store, hosts, slow), store, slow)
    if "answers" in forms:
        yield measure("answers", in_fresh_process(answer, work / "answers", hosts), bare, slow, work / "answers")
    if "scraped" in forms:
        rows = in_fresh_process(scrape, work / "scraped", scraped)
        yield measure(f"scraped, {scraped} hosts", rows, bare, slow, work / "scraped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--scraped", type=int, default=200, help="hosts of which there are scrapes")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with TemporaryDirectory() as work:
        rows = list(rows_of(Path(work), options.hosts, options.scraped, options.forms))
    report("telemetry of a day", rows, as_json=options.json)


if __name__ == "__main__":
    main()
