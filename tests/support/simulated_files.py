"""Simulated jobs with devices, kept in several files."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from fault_model import Fault
from layouts import JobLayout
from simulator import JobSpec, simulate
from table import write_table

from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import Trace

STEPS = 5


def simulated(folder: Path, layout: JobLayout, *faults: Fault) -> Trace:
    """A job with a file for every three ranks, not in their order."""
    job = write_table(simulate([JobSpec(layout, steps=STEPS, seed=1, faults=faults)])[0], folder)
    table = pq.read_table(job.fragments[0])
    ranks, steps = table["rank"].to_numpy(), table["step"].to_numpy()
    files = []
    for first in reversed(range(0, layout.ranks, 3)):
        members = (first <= ranks) & (ranks < first + 3)
        files.append(folder / f"ranks-{first}.parquet")
        write_fragment(files[-1], [table.filter(members & (steps == step)) for step in job.steps], {})
    return replace(job, fragments=tuple(files))
