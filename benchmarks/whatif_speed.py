"""What-if analyses: CPU time and memory, beside the published analyzer and its algorithm.

    python benchmarks/whatif_speed.py ../shared/traces/bytedance/trace-SE.parquet --times 1 16
    python benchmarks/whatif_speed.py ... --artifact DIR --artifact-python PYTHON

Kair: reading the Parquet file for the first time (and writing its fragment), the analysis (which also prices every
worker exactly, the remedies and launch delays), JSON; and within the analysis its simulations alone, with the order in
which they replay; and what of it the published analyzer leaves to others or does not do: remedies, patterns of pauses,
M_W and M_S. Beside it, where DIR is a checkout of the published analyzer and PYTHON the interpreter of an
environment with its packages, that analyzer from reading to JSON. `whatif_peer.py` is its algorithm over arrays,
without the DataFrames in which it spends most of its time, and with less in it: S by operation type, stage and
data-parallel rank. `--times` lays the file's data-parallel ranks beside each other so often. Imports are left out on
all sides.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import polars as pl
from measuring import Row, in_fresh_process, peak_mb, report, run_child, say
from whatif_peer import analyze

from kair_engine.opening import open_trace
from kair_engine.whatif import analysis
from kair_engine.whatif.analysis import whatif
from kair_engine.whatif.attribution import attribute
from kair_engine.whatif.pipeline_rows import read_pipeline
from kair_engine.whatif.pipeline_times import pipeline_times

CLOSE = 1e-4
MORE = ("remedies", "irregular_causes", "explained")
"""What the analysis does and the published analyzer does not, by the names that it calls."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Original:
    """Where the published analyzer is."""

    artifact: Path
    python: str


def copies(source: Path, times: int, folder: Path) -> Path:
    """The trace with `times` as many data-parallel ranks."""
    target = folder / "trace-copies.parquet"
    if times == 1:
        shutil.copy(source, target)
        return target
    one = pl.read_parquet(source).with_columns(pl.col("dp_rank", "rank").cast(pl.Int32))
    dps, ranks = int(one["dp_rank"].max() or 0) + 1, int(one["rank"].max() or 0) + 1
    shifted = (one.with_columns(pl.col("dp_rank") + dps * n, pl.col("rank") + ranks * n) for n in range(times))
    pl.concat(list(shifted)).write_parquet(target)
    return target


def kair(path: Path, runs: int) -> dict[str, float]:
    """CPU seconds of each part, the least of all runs, and the process' peak memory in the first of them."""
    took: dict[str, list[float]] = {}
    peak = 0.0

    def timed(name: str, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        begin = time.process_time()
        result = function()
        took.setdefault(name, []).append(time.process_time() - begin)
        return result

    for _ in range(runs):
        with TemporaryDirectory() as cache, timed_calls(MORE) as more:
            trace = timed("read", lambda cache=cache: open_trace(path, cache=Path(cache)))
            result = timed("analysis", lambda trace=trace: whatif(trace))
            timed("JSON", lambda result=result: msgspec.json.encode(msgspec.to_builtins(result, str_keys=True)))
            took.setdefault("more", []).append(sum(more))
            peak = peak or peak_mb()
            rows = read_pipeline(trace)
        times = pipeline_times(rows)
        timed("simulations", lambda times=times: attribute(times))
    named = {name: min(values) for name, values in took.items()}
    scenarios = 2 + len(result.by_operator_type) + rows.pp_size + rows.dp_size * (1 + rows.pp_size)
    return named | {"S": result.slowdown, "peak": peak, "scenarios": scenarios}


@contextmanager
def timed_calls(names: Sequence[str]) -> Iterator[list[float]]:
    """The CPU seconds of all calls of these functions by the analysis."""
    took: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            begin = time.process_time()
            result = function(*arguments, **options)
            result = list(result) if isinstance(result, Iterator) else result
            took.append(time.process_time() - begin)
            return result

        return run

    with patch.multiple(analysis, **{name: timed(getattr(analysis, name)) for name in names}):
        yield took


def peer(path: Path, runs: int) -> dict[str, float]:
    """The same of the published algorithm, all in one."""
    took = []
    for _ in range(runs):
        begin = time.process_time()
        result = analyze(path)
        took.append(time.process_time() - begin)
    return {"all": min(took), "S": result["S"]}


def original(where: Original, path: Path, metadata: Path, runs: int) -> dict[str, float]:
    """The run of the published analyzer that took least CPU."""
    command = [where.python, str(HERE / "whatif_original.py"), str(where.artifact), str(path), str(metadata)]
    found = [json.loads(run_child(command).stdout.splitlines()[-1]) for _ in range(runs)]
    return min(found, key=lambda run: float(run["cpu_s"]))


def measure(source: Path, times: int, runs: int, where: Original | None) -> Row:
    """One row. Raises SystemExit where any two disagree on S."""
    with TemporaryDirectory() as folder:
        path = copies(source, times, Path(folder))
        say(f"{source.stem} × {times}")
        mine, other = in_fresh_process(kair, path, runs), in_fresh_process(peer, path, 1)
        metadata = source.with_name(f"meta-{source.stem.removeprefix('trace-')}.yaml")
        theirs = original(where, path, metadata, runs) if where else {}
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    for found in filter(None, (other, theirs)):
        if abs(mine["S"] / found["S"] - 1) > CLOSE:
            raise SystemExit(f"{source.name} × {times}: S is {mine['S']} here and {found['S']} there")
    total = mine["read"] + mine["analysis"] + mine["JSON"]
    row: dict[str, str | int | float | None] = {
        "trace": f"{source.stem} × {times}",
        "operations": rows,
        **{f"{name} s": mine[name] for name in ("read", "analysis", "JSON")},
        "all s": total,
        "more s": mine["more"],
        "peak MB": mine["peak"],
        "scenarios": int(mine["scenarios"]),
        "simulations s": mine["simulations"],
        "algorithm s": other["all"],
    }
    if theirs:
        per_scenario = theirs["simulations_s"] / theirs["scenarios"]
        row |= {
            "original s": theirs["cpu_s"],
            "its MB": theirs["peak_mb"],
            "its scenarios": int(theirs["scenarios"]),
            "its simulations s": theirs["simulations_s"],
            "faster": theirs["cpu_s"] / total,
            "at the same": theirs["cpu_s"] / (total - mine["more"]),
            "a scenario": per_scenario / (mine["simulations"] / mine["scenarios"]),
        }
    return row


def notes(rows: Sequence[Row]) -> list[str]:
    """How to read the columns."""
    said = ["CPU seconds, the least of the runs; memory of a first run. algorithm: whatif_peer.py, one run."]
    if "faster" in rows[0]:
        said.append(
            "faster: original s / all s; at the same: without what it does not do (more s). a scenario: the time of "
            "one of its simulations over that of one of ours."
        )
    return said


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="what-if Parquet files")
    parser.add_argument("--times", type=int, nargs="+", default=[1], help="as many times the data-parallel ranks")
    parser.add_argument("--artifact", type=Path, help="a checkout of the published analyzer")
    parser.add_argument("--artifact-python", help="interpreter of an environment with its packages")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (options.artifact is None) != (options.artifact_python is None):
        parser.error("--artifact and --artifact-python go together")
    where = Original(options.artifact.resolve(), options.artifact_python) if options.artifact else None
    rows = [measure(path, times, options.runs, where) for path in options.traces for times in options.times]
    report("what-if", rows, as_json=options.json, notes=notes(rows))


if __name__ == "__main__":
    main()
