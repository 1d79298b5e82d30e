"""`kair export`: writes the job as a file that other programs open."""

from pathlib import Path
from typing import Annotated

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_tui.cli.options import PERFETTO, Option
from kair_tui.render.text import clean
from kair_tui.render.units import count, plural


def run(
    trace: Trace,
    *,
    out: Annotated[
        Path | None,
        Option(
            "-o, --output",
            "The file to write: .json, .json.gz or .pftrace for Perfetto; .parquet, .csv or .arrow for the operations.",
            metavar="FILE",
        ),
    ] = None,
    perfetto: Annotated[Path | None, PERFETTO] = None,
    plain: Annotated[bool, Option("--plain", "Leave out findings and arrows, which is faster.")] = False,
) -> str:
    """Write the file, and describe its contents. Raises UsageError if that is impossible."""
    from kair.app.acts.files import export_job, export_timeline

    file = perfetto if out is None else out
    if file is None or None not in (out, perfetto):
        raise UsageError("one file is wanted", "kair export JOB --perfetto trace.json.gz, or -o operations.parquet")
    done = (export_job if perfetto is None else export_timeline)(trace, file, plain=plain)
    marks = f", {plural(done.findings, 'mark')} of findings, {plural(done.arrows, 'arrow')}" if done.findings else ""
    more = marks or (f", {plural(done.arrows, 'arrow')}" if done.arrows else "")
    ranks, steps = plural(len(trace.job.ranks), "rank"), plural(len(trace.steps), "step")
    return f"{clean(str(file))}: {count(done.rows)} operations of {ranks} in {steps}{more}\n"
