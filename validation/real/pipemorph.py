"""Predicts from PipeMorph's 1F1B logs alone what its makers measured with other schedules, and compares.

Usage: python validation/real/pipemorph.py REPOSITORY

REPOSITORY is a clone of github.com/wutianyuan1/PipeMorph that holds commit a500b85b (branch extended_experiments); its
logs are read from there and nothing of them is kept. Each run is written as a what-if recording of its slow iterations
and asked by `kair whatif --remedy`. A receive begins when the stage's operation before it ended, a send ends when the
other end begins. JSON goes to standard output; the medians of `summary` are in `CHECKED` of the engine.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

REVISION = "a500b85b3b9b1ae0b0846f4ba82bf149a7ab2744"
STAGES, MICROBATCHES = 4, 12
SLOW = range(10, 16)
"""The link is slow in these iterations from begin to end."""
REMEDIES = {"ZB": "zb_2p", "ZB-CPU": "zb_cpu", "ZB-CPU-ReSchedule": "reschedule"}
LOOKED_AT = {"fig15/2_3/0.02"}
"""Read to understand the format: not scored."""
OPERATION = re.compile(r"\[RANK\d+\] ([FB]) @ ([\d.]+) \(ms\) to ([\d.]+)")
ELAPSED = re.compile(r"iteration\s+(\d+)/.*elapsed time per iteration \(ms\): ([\d.]+)")
NAMES = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc", "mb_id")
META = "dp_size: 1\npp_size: 4\ntp_size: 1\ndsp_size: 1\nvpp_size: 1\nworld_size: 4\n"


def git(repository: Path, *words: str) -> str:
    """Return what git prints of the repository."""
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def measured_ms(repository: Path, folder: str) -> float:
    """Return the median slow iteration, as the trainer logged it."""
    text = git(repository, "show", f"{REVISION}:{folder}/log.txt")
    return statistics.median(float(of[2]) for of in ELAPSED.finditer(text) if int(of[1]) in SLOW)


def write_recording(texts: Sequence[str], out: Path, iterations: Iterable[int] = SLOW) -> None:
    """Write iterations of a 1F1B run, given each stage's log, as a what-if recording with its metadata next to it."""
    ops: dict[tuple[int, int], list[tuple[str, float, float]]] = {}
    for rank, log in enumerate(texts):
        iteration = 0
        for text in log.splitlines():
            if "Iteration" in text:
                iteration = int(text.split()[-1])
            elif of := OPERATION.match(text):
                ops.setdefault((iteration, rank), []).append((of[1], float(of[2]), float(of[3])))
    rows: list[tuple[Any, ...]] = []
    for iteration in iterations:
        rows += _rows(iteration, [ops[iteration, rank] for rank in range(STAGES)])
    kinds = {"optype": pa.string(), "start_ts": pa.float32(), "duration": pa.float32()}
    columns = zip(*rows, strict=True)
    table = {name: pa.array(of, kinds.get(name, pa.int32())) for name, of in zip(NAMES, columns, strict=True)}
    pq.write_table(pa.table(table), out)
    out.with_name(f"meta-{out.stem.removeprefix('trace-')}.yaml").write_text(META, encoding="utf-8")


def _rows(iteration: int, ops: list[list[tuple[str, float, float]]]) -> list[tuple[Any, ...]]:
    zero = min(begin for of in ops for _, begin, _ in of)
    at: dict[tuple[int, str, int], tuple[float, float, float]] = {}
    for rank, of in enumerate(ops):
        number = {"F": 0, "B": 0}
        for place, (kind, begin, end) in enumerate(of):
            at[rank, kind, number[kind]] = begin, end, of[place - 1][2] if place else zero
            number[kind] += 1
    rows: list[tuple[Any, ...]] = []
    turn: dict[tuple[int, str], int] = {}

    def add(rank: int, name: str, begin: float, end: float, batch: int) -> None:
        turn[rank, name] = turn.get((rank, name), -1) + 1
        lasts = max(end - begin, 0) / 1e3
        rows.append((0, rank, rank, iteration, name, (begin - zero) / 1e3, lasts, turn[rank, name], 0, 0, batch))

    for rank in range(STAGES):
        for batch in range(MICROBATCHES):
            for kind, name, up, down in (("F", "forward", -1, 1), ("B", "backward", 1, -1)):
                begin, end, before = at[rank, kind, batch]
                add(rank, name + "-compute", begin, end, batch)
                if 0 <= rank + up < STAGES:
                    add(rank, name + "-recv", before, begin, batch)
                if 0 <= rank + down < STAGES:
                    add(rank, name + "-send", end, max(at[rank + down, kind, batch][0], end), batch)
    return rows


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Return Spearman's: Pearson's of the ranks (no ties are expected)."""
    places = [[sorted(of).index(value) for value in of] for of in (one, other)]
    return statistics.correlation(*places)


def runs(repository: Path) -> list[tuple[str, str]]:
    """Return (figure, link and delay) of each steady run that has all four schedules."""
    files = git(repository, "ls-tree", "-r", "--name-only", REVISION, "ae").splitlines()
    logs = [re.fullmatch(r"ae/(\w+)/1F1B/(.+)/log\.txt", name) for name in files]
    found = [(of[1], of[2]) for of in logs if of]
    return [run for run in found if all(f"ae/{run[0]}/{method}/{run[1]}/log.txt" in files for method in REMEDIES)]


def compare(repository: Path, folder: Path) -> list[dict[str, Any]]:
    """Return per run and schedule what was predicted from 1F1B, and what was measured, ms."""
    rows = []
    for figure, case in runs(repository):
        one = f"ae/{figure}/1F1B/{case}"
        # The published analyzer's names: trace-X.parquet and meta-X.yaml in one folder.
        own = folder / one.replace("/", "-")
        own.mkdir()
        recording = own / "trace-PM.parquet"
        names = [f"{REVISION}:{one}/GPU{rank}_rank{rank}_1F1B.log" for rank in range(STAGES)]
        write_recording([git(repository, "show", name) for name in names], recording)
        asked = [word for name in REMEDIES.values() for word in ("--remedy", name)]
        command = [sys.executable, "-m", "kair_tui", "whatif", str(recording), *asked, "--json"]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        by_name = {of["remedy"]: of for of in answer["data"]["remedies"]}
        today = measured_ms(repository, one)
        for method, name in REMEDIES.items():
            low, high = by_name[name]["saved_range_us"]
            rows.append(
                {
                    "run": f"{figure}/{case}",
                    "schedule": method,
                    "measured_1f1b_ms": today,
                    "predicted_ms": today - by_name[name]["saved_us"] / 1e3,
                    "predicted_range_ms": [today - high / 1e3, today - low / 1e3],
                    "measured_ms": measured_ms(repository, f"ae/{figure}/{method}/{case}"),
                    "scored": f"{figure}/{case}" not in LOOKED_AT,
                }
            )
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return per schedule, and of all, the errors and the rank correlation of the scored runs."""
    result = []
    for method in (*REMEDIES, "all"):
        chosen = [row for row in rows if row["scored"] and method in {row["schedule"], "all"}]
        errors = [row["predicted_ms"] / row["measured_ms"] - 1 for row in chosen]
        naive = [row["measured_1f1b_ms"] / row["measured_ms"] - 1 for row in chosen]
        result.append(
            {
                "schedule": method,
                "runs": len(chosen),
                "median_error": statistics.median(errors),
                "median_absolute_error": statistics.median(map(abs, errors)),
                "largest_absolute_error": max(map(abs, errors)),
                "median_error_of_no_change": statistics.median(map(abs, naive)),
                "rank_correlation": rank_correlation(
                    [row["predicted_ms"] for row in chosen], [row["measured_ms"] for row in chosen]
                ),
                "rank_correlation_of_savings": rank_correlation(
                    [row["measured_1f1b_ms"] - row["predicted_ms"] for row in chosen],
                    [row["measured_1f1b_ms"] - row["measured_ms"] for row in chosen],
                ),
            }
        )
    return result


def main() -> None:
    """Print both tables as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("repository", type=Path)
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(options.parse_args().repository, Path(folder))
    print(json.dumps({"commit": REVISION, "summary": summary(rows), "runs": rows}, indent=1))


if __name__ == "__main__":
    main()
