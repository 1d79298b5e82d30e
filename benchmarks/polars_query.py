"""The same two questions of ten million operations, by Polars and as the engine asks them: CPU time and peak memory.

    python benchmarks/polars_query.py

Read: every column that stage 1 needs, step by step, as the engine reads them, and all at once. Sums: how long each rank
spent in each operator. Every way runs in a process of its own; importing is part of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measuring import Row, report, run_child

HERE = Path(__file__).parent
BEGIN = """
import glob, sys
files = sorted(glob.glob(sys.argv[1] + "/fragments/*.parquet"))
names = ["step", "rank", "lane", "name", "kind", "phase", "start_ns", "duration_ns", "group", "group_seq", "bytes"]
names += ["inputs", "occurrence", "peer", "correlation"]
"""
POLARS = "import polars as pl\nscan = pl.scan_parquet(files)\n"
ENGINE = """
from pathlib import Path
import numpy as np
from kair_engine.recording.opening import open_trace
from kair_engine.trace.columns import read_columns
trace = open_trace(Path(sys.argv[1]), cache=Path(sys.argv[1] + "-cache"), workers=1)
"""
WAYS = {
    "import polars": "import polars",
    "import numpy, pyarrow": "import numpy, pyarrow.parquet",
    "read step by step, Polars": f"""{BEGIN}{POLARS}
for step in range(20):
    scan.filter(pl.col("step") == step).select(names).collect(engine="streaming")
""",
    "the same, as arrays of codes": f"""{BEGIN}{POLARS}
import numpy as np
def arrays(column):
    if column.dtype != pl.Categorical:
        return column.fill_null(-1).to_numpy()
    codes = column.to_physical().cast(pl.Int32).fill_null(-1).to_numpy()
    row = np.full(codes.max(initial=-1) + 2, -1, np.int64)
    row[codes] = np.arange(len(codes))
    known = row[:-1] >= 0
    return np.append(np.cumsum(known) - 1, -1)[codes], column.gather(row[:-1][known]).cast(pl.String).to_list()
for step in range(20):
    rows = scan.filter(pl.col("step") == step).select(names).collect(engine="streaming")
    read = [arrays(rows.get_column(name)) for name in names]
""",
    "read step by step, engine": f"""{BEGIN}{ENGINE}
for step in range(20):
    read_columns(trace, names[2:], [step])
""",
    "sums, Polars": f"""{BEGIN}{POLARS}
sums = scan.group_by("rank", "kind", "name").agg(pl.col("duration_ns").sum()).collect(engine="streaming")
""",
    "sums, engine": f"""{BEGIN}{ENGINE}
sums = 0
for step in trace.steps:
    table = read_columns(trace, ["name", "kind", "duration_ns"], [step])
    key = (table.of["rank"].astype(np.int64) * 64 + table.of["kind"]) * 4096 + table.of["name"]
    cells, place = np.unique(key, return_inverse=True)
    sums += np.bincount(place, weights=table.of["duration_ns"]).sum()
""",
}


def main() -> int:
    """Make the table, and print what each way takes; 0."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        size = ["--ranks", "64", "--steps", "20", "--operations", "7800"]
        run_child([sys.executable, str(HERE / "make_big_table.py"), str(job), *size])
        rows: list[Row] = []
        for name, code in WAYS.items():
            took = run_child([sys.executable, "-c", code, str(job)])
            rows.append({"what": name, "CPU s": took.cpu_s, "peak MB": took.peak_mb})
    report("10 million operations", rows, as_json=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
