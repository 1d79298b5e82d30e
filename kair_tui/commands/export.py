"""`kair export`: the job as a file that other programs open."""

from pathlib import Path
from typing import Annotated

from kair_engine.trace.model import Trace
from kair_tui.cli.options import Option
from kair_tui.render.text import clean
from kair_tui.render.units import count, plural


def run(
    trace: Trace,
    *,
    out: Annotated[
        Path,
        Option(
            "-o, --output",
            "The file to write: .json, .json.gz or .pftrace for Perfetto; .parquet, .csv or .arrow for the operations.",
            metavar="FILE",
        ),
    ],
    plain: Annotated[bool, Option("--plain", "No findings and no arrows: the operations alone, sooner.")] = False,
) -> str:
    """Write the file, and say what is in it. Raises UsageError where that cannot be done."""
    from kair.app.acts.files import export_job

    done = export_job(trace, out, plain=plain)
    marks = f", {plural(done.findings, 'mark')} of findings, {plural(done.arrows, 'arrow')}" if done.findings else ""
    told = marks or (f", {plural(done.arrows, 'arrow')}" if done.arrows else "")
    ranks, steps = plural(len(trace.job.ranks), "rank"), plural(len(trace.steps), "step")
    return f"{clean(str(out))}: {count(done.rows)} operations of {ranks} in {steps}{told}\n"
