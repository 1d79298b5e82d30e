"""What-if analyses: CPU time and memory, beside the published algorithm.

    python benchmarks/whatif_speed.py ../shared/traces/bytedance/trace-SE.parquet --times 1 16

Kair: reading the Parquet file for the first time (and writing its fragment), reading it again, the analysis (which also
prices every worker exactly, the remedies and launch delays), JSON. Beside it `whatif_peer.py`: the published algorithm
over arrays, without the DataFrames in which the original spends most of its time, and less in it: S by operation type,
stage and data-parallel rank. `--times` lays the file's data-parallel ranks beside each other so often.
"""

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import polars as pl
from measuring import Row, in_fresh_process, peak_mb, report
from whatif_peer import analyze

from kair_engine.opening import open_trace
from kair_engine.whatif.analysis import whatif

CLOSE = 1e-4


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
    """CPU seconds of each part, the least of all runs, and the process' peak memory."""
    took: dict[str, list[float]] = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        begin = time.process_time()
        result = function()
        took.setdefault(name, []).append(time.process_time() - begin)
        return result

    for _ in range(runs):
        with TemporaryDirectory() as cache:
            timed("first read", lambda cache=cache: open_trace(path, cache=Path(cache)))
            trace = timed("read again", lambda cache=cache: open_trace(path, cache=Path(cache)))
            result = timed("analysis", lambda trace=trace: whatif(trace))
        timed("JSON", lambda result=result: msgspec.json.encode(msgspec.to_builtins(result, str_keys=True)))
    return {name: min(values) for name, values in took.items()} | {"S": result.slowdown, "peak": peak_mb()}


def peer(path: Path, runs: int) -> dict[str, float]:
    """The same of the published algorithm, all in one."""
    took = []
    for _ in range(runs):
        begin = time.process_time()
        result = analyze(path)
        took.append(time.process_time() - begin)
    return {"all": min(took), "S": result["S"], "peak": peak_mb()}


def measure(source: Path, times: int, runs: int) -> Row:
    """One row. Raises SystemExit where the two disagree on S."""
    with TemporaryDirectory() as folder:
        path = copies(source, times, Path(folder))
        mine, other = in_fresh_process(kair, path, runs), in_fresh_process(peer, path, runs)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    if abs(mine["S"] / other["S"] - 1) > CLOSE:
        raise SystemExit(f"{source.name} × {times}: S is {mine['S']} here and {other['S']} there")
    return {
        "trace": f"{source.stem} × {times}",
        "operations": rows,
        **{f"{name} s": mine[name] for name in ("first read", "read again", "analysis", "JSON")},
        "peak MB": mine["peak"],
        "published algorithm s": other["all"],
        "its peak MB": other["peak"],
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="what-if Parquet files")
    parser.add_argument("--times", type=int, nargs="+", default=[1], help="as many times the data-parallel ranks")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(path, times, options.runs) for path in options.traces for times in options.times]
    report("what-if", rows, as_json=options.json, notes=["CPU seconds, the least of the runs"])


if __name__ == "__main__":
    main()
