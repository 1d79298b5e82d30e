"""`kair donate`: writes a job as a gift, without its names."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Final

from kair_engine.trace.model import Trace
from kair_tui.cli.options import Option
from kair_tui.render.text import clean
from kair_tui.render.units import count, duration, plural

_SORTS: Final = {
    "host": "host",
    "kernel": "kernel",
    "operator": "operator",
    "scope": "annotation",
    "lane": "lane",
    "group_name": "process group",
    "dimension": "group description",
    "device_model": "device model",
    "address": "address",
    "folder": "folder",
}
_MANY: Final = {"address": "addresses"}


def run(
    trace: Trace,
    *,
    out: Annotated[
        Path | None,
        Option("-o, --output", "The file to write, which must not exist: NAME.tar.zst.", metavar="FILE"),
    ] = None,
) -> str:
    """Write the gift and return its contents; without a file, return the names that it would keep. Raises KairError."""
    from kair.app.acts.files import donate_job

    donated, found = donate_job(trace, out)
    lines = (
        [] if out is None else [f"{clean(str(out))}: verdict, ranks, cause and price as in the job ({found.verdict})"]
    )
    lines += list(_contents(trace, len(donated.kept), donated.replaced))
    if out is None:
        lines += ["nothing is written (-o FILE); names kept:", *(f"  {clean(name)}" for name in donated.kept)]
    return "\n".join((*lines, ""))


def _contents(trace: Trace, kept: int, replaced: Mapping[str, int]) -> tuple[str, ...]:
    job = trace.job
    names = ", ".join(plural(number, _SORTS[sort], _MANY.get(sort)) for sort, number in replaced.items())
    per_step = count(round(median(job.step_times.operations)))
    step = duration(median(job.step_times.duration_ns) / 1e3)
    ranks = plural(len(job.ranks), "rank")
    return (
        f"kept: times, order and kinds of {count(job.operations)} operations, and "
        f"{plural(kept, 'name')} that frameworks give",
        f"replaced: {names}",
        "reduced: sizes to 1 where ranks and steps agree, else to their ratios; the date to one that all gifts have",
        "left out: evidence, logs, notes, versions, settings, addresses and numbers of devices",
        f"could still identify the model: {ranks} and their groups, {per_step} operations per step and their order "
        f"(layers repeat), {step} per step, ratios of sizes",
    )
