"""What-if analyses: CPU time and memory, beside the published analyzer and its algorithm.

    python benchmarks/whatif_speed.py ../shared/traces/bytedance/trace-SE.parquet --times 1 16
    python benchmarks/whatif_speed.py ... --artifact DIR --artifact-python PYTHON

Kair: reading the Parquet file for the first time (and writing its fragment), the analysis (which also prices every
worker exactly, the remedies and launch delays), JSON; and within the analysis its simulations alone, with the order in
which they replay; and what of it the published analyzer leaves to others or does not do: remedies, patterns of pauses,
M_W and M_S. Each run is a fresh process, which has to page in its memory; what it takes when it does all again is
beside it. So is the whole command, with its start and imports; everywhere else imports are left out, on all sides.

Beside it, where DIR is a checkout of the published analyzer and PYTHON the interpreter of an environment with its
packages, that analyzer from reading to JSON, run in turn with ours. As whole processes there are two comparisons: its
first script, which prices operation types and workers, with `kair whatif --json`; and all scripts that its `run_all.sh`
runs for a trace (prices, heat map, M_S, M_W, ideal timeline) with the one command that answers all of it,
`kair whatif --timeline`, whose file has the recorded timeline too. `whatif_peer.py` is its algorithm over arrays,
without the DataFrames in which it spends most of its time, and with less in it: S by operation type, stage and
data-parallel rank. `--times` lays the file's data-parallel ranks beside each other so often.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import numpy.ma
import polars as pl
from measuring import Row, in_fresh_process, peak_mb, report, run_child, say
from whatif_peer import analyze

import kair_engine.readers.whatif_parquet
import kair_engine.recording.job_file
from kair_engine.recording.opening import open_trace
from kair_engine.whatif.analysis import whatif
from kair_engine.whatif.pipeline import model
from kair_engine.whatif.pipeline.model import attribute
from kair_engine.whatif.pipeline.rows import read_pipeline
from kair_engine.whatif.pipeline.times import pipeline_times

# Loaded where they are first needed, which is not to be measured.
LAZY = (numpy.ma, kair_engine.readers.whatif_parquet, kair_engine.recording.job_file)
CLOSE = 1e-4
MORE = ("remedies", "irregular_causes")
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


def kair(path: Path) -> dict[str, float]:
    """CPU seconds of each part when all is done for the second time, `first` and the peak of the first time."""
    first = _once(path)
    peak = peak_mb()
    again = _once(path)
    return again | {"first": first["all"], "peak": peak}


def _once(path: Path) -> dict[str, float]:
    took: dict[str, float] = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        begin = time.process_time()
        result = function()
        took[name] = time.process_time() - begin
        return result

    with TemporaryDirectory() as cache, timed_calls(MORE) as more:
        trace = timed("read", lambda: open_trace(path, cache=Path(cache)))
        result = timed("analysis", lambda: whatif(trace))
        timed("JSON", lambda: msgspec.json.encode(msgspec.to_builtins(result, str_keys=True)))
        rows = read_pipeline(trace)
    took |= {"all": sum(took.values()), "more": sum(more), "S": result.slowdown}
    times = pipeline_times(rows)
    timed("simulations", lambda: attribute(times))
    scenarios = 2 + len(result.by_operator_type) + rows.pp_size + rows.dp_size * (1 + rows.pp_size)
    return took | {"scenarios": scenarios}


def command(path: Path, *options: str) -> float:
    """CPU seconds of `kair whatif` for a file that it has not read before."""
    with TemporaryDirectory() as folder:
        places = {"KAIR_CACHE": folder, "KAIR_STORE": folder}
        return run_child([sys.executable, "-m", "kair_tui", "whatif", str(path), *options], environment=places).cpu_s


def whole_answer(path: Path) -> float:
    """CPU seconds of the page with all prices, the heat map, M_W and M_S, and of the timelines."""
    with TemporaryDirectory() as folder:
        return command(path, "--timeline", str(Path(folder) / "timeline.json.gz"))


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

    with patch.multiple(model, **{name: timed(getattr(model, name)) for name in names}):
        yield took


def peer(path: Path) -> dict[str, float]:
    """The published algorithm, all in one."""
    begin = time.process_time()
    result = analyze(path)
    return {"all": time.process_time() - begin, "S": result["S"]}


def original(where: Original, path: Path, metadata: Path) -> dict[str, float]:
    """One run of the published analyzer, and one of its command."""
    run = [where.python, str(HERE / "whatif_original.py"), str(where.artifact), str(path), str(metadata)]
    found: dict[str, float] = json.loads(run_child(run).stdout.splitlines()[-1])
    places = {"PYTHONPATH": str(where.artifact)}
    with TemporaryDirectory() as out:
        first, *others = (
            run_child([where.python, str(where.artifact / "analyzer" / script), *options], environment=places).cpu_s
            for script, options in scripts(path, metadata, Path(out))
        )
    return found | {"command_s": first, "all_s": first + sum(others)}


def scripts(path: Path, metadata: Path, out: Path) -> Iterator[tuple[str, list[str]]]:
    """What `run_all.sh` runs for a trace, one after another: (script, its options)."""
    yield "wia.py", ["--metadata", str(metadata), "--trace", str(path), "--dump-dir", str(out), "--root", str(out)]
    (result,) = out.glob("*.json")
    given = ["--trial", result.stem, "--dump-dir", str(out), "--analysis-result", str(result)]
    yield "heatmap.py", given
    yield "compute_ms.py", [*given, "--root", str(out)]
    yield "compute_mw.py", [*given, "--root", str(out)]
    (ideal,) = out.glob("dataframe/*-no-blocking.parquet")
    yield (
        "to_timeline.py",
        [str(ideal), "-o", str(out), *["--reset-step-start", "--step-st", "0", "--step-ed", "999999"]],
    )


def measure(source: Path, times: int, runs: int, where: Original | None) -> Row:
    """One row. Raises SystemExit where any two disagree on S."""
    mine, theirs, commands, whole = [], [], [], []
    metadata = source.with_name(f"meta-{source.stem.removeprefix('trace-')}.yaml")
    with TemporaryDirectory() as folder:
        path = copies(source, times, Path(folder))
        say(f"{source.stem} × {times}")
        for _ in range(runs):
            mine.append(in_fresh_process(kair, path))
            commands.append(command(path, "--json"))
            whole.append(whole_answer(path))
            theirs += [original(where, path, metadata)] if where else []
        other = in_fresh_process(peer, path)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    for found in (other, *theirs):
        if abs(mine[0]["S"] / found["S"] - 1) > CLOSE:
            raise SystemExit(f"{source.name} × {times}: S is {mine[0]['S']} here and {found['S']} there")
    best = {name: min(run[name] for run in mine) for name in mine[0]}
    row: dict[str, str | int | float | None] = {
        "trace": f"{source.stem} × {times}",
        "operations": rows,
        "all s": best["first"],
        "peak MB": mine[0]["peak"],
        "again s": best["all"],
        **{f"{name} s": best[name] for name in ("read", "analysis", "JSON", "more")},
        "scenarios": int(best["scenarios"]),
        "simulations s": best["simulations"],
        "algorithm s": other["all"],
        "command s": min(commands),
        "whole answer s": min(whole),
    }
    if theirs:
        least = {name: min(run[name] for run in theirs) for name in theirs[0]}
        pairs = list(zip(mine, theirs, strict=True))
        row |= {
            "original s": least["cpu_s"],
            "its MB": least["peak_mb"],
            "its scenarios": int(least["scenarios"]),
            "its simulations s": least["simulations_s"],
            "its command s": least["command_s"],
            "all its scripts s": least["all_s"],
            "faster": median(its["cpu_s"] / own["first"] for own, its in pairs),
            "again": median(its["cpu_s"] / own["all"] for own, its in pairs),
            "at the same": median(its["cpu_s"] / (own["all"] - own["more"]) for own, its in pairs),
            "simulations": median(its["simulations_s"] / own["simulations"] for own, its in pairs),
            "a scenario": median(
                its["simulations_s"] / its["scenarios"] / (own["simulations"] / own["scenarios"]) for own, its in pairs
            ),
            "command": median(its["command_s"] / own for own, its in zip(commands, theirs, strict=True)),
            "whole answer": median(its["all_s"] / own for own, its in zip(whole, theirs, strict=True)),
        }
    return row


def notes(rows: Sequence[Row]) -> list[str]:
    """How to read the columns."""
    said = ["CPU seconds, the least of the runs; memory of a first run. algorithm: whatif_peer.py, one run."]
    if "faster" in rows[0]:
        said.append(
            "Ratios are medians of runs in turn. faster: original s / all s; again: / again s; at the same: / again s "
            "without more s. a scenario: the time of one of its simulations over that of one of ours."
        )
    return said


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="what-if Parquet files")
    parser.add_argument("--times", type=int, nargs="+", default=[1], help="as many times the data-parallel ranks")
    parser.add_argument("--artifact", type=Path, help="a checkout of the published analyzer")
    parser.add_argument("--artifact-python", help="interpreter of an environment with its packages")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (options.artifact is None) != (options.artifact_python is None):
        parser.error("--artifact and --artifact-python go together")
    where = Original(options.artifact.resolve(), options.artifact_python) if options.artifact else None
    rows = [measure(path, times, options.runs, where) for path in options.traces for times in options.times]
    report("what-if", rows, as_json=options.json, notes=notes(rows))


if __name__ == "__main__":
    main()
