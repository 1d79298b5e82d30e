"""`kair fleet`: shows how often stragglers occur in the store's jobs, and what they cost."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.results.money import GpuCost
from kair_engine.results.store import FleetResult
from kair_tui.cli.options import GPU_COST
from kair_tui.commands.report_file import REPORT, made_now, require_form, write_report

RENDERER = "kair_tui.render.fleet"


def run(
    session: OpenStore,
    *,
    gpu_cost: Annotated[GpuCost | None, GPU_COST] = None,
    report: Annotated[Path | None, REPORT] = None,
) -> FleetResult:
    """Price the jobs that are not priced yet, and summarize all. Raises InputError if the store has no jobs."""
    from kair.app.acts.jobs import price_jobs

    require_form(report)
    result: FleetResult = session.ask(Question.of("fleet", priced=price_jobs(session), gpu_cost=gpu_cost)).result
    if report is not None:
        from kair_tui.render.report.fleet import fleet_report

        write_report(report, fleet_report(result, _command(session, gpu_cost), made_now()))
    return result


def markdown(session: OpenStore, result: FleetResult, own: Mapping[str, Any]) -> str:
    """Return the report of the answer, as `-o md` writes it."""
    from kair_tui.render.report.fleet import fleet_report
    from kair_tui.render.report.templates import markdown as in_markdown

    return in_markdown(fleet_report(result, _command(session, own["gpu_cost"]), made_now()))


def _command(session: OpenStore, gpu_cost: float | None) -> str:
    price = [] if gpu_cost is None else ["--gpu-cost", str(GpuCost.of(gpu_cost))]
    return shlex.join(["kair", "fleet", "--store", session.address, *price])
