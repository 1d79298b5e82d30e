"""`kair fleet`: how often stragglers occur in the store's jobs, and what they cost."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from kair.app.stores import OpenStore
from kair_engine.errors import InputError
from kair_engine.results.store import FleetJob, FleetResult, StragglerCost
from kair_tui.cli.options import Option
from kair_tui.commands.report_file import REPORT, made_now, require_form, write_report

if TYPE_CHECKING:
    from kair_engine.store.jobs import StoredJob


GPU_COST: Final = Option(
    "--gpu-cost", "The price of a GPU hour; what is wasted is then priced in money too.", metavar="PRICE", minimum=0
)


def money_per_day(cost: StragglerCost, gpu_cost: float | None) -> float | None:
    """What the wasted hours of a day cost; None where the price of one is not known."""
    return None if gpu_cost is None else cost.gpu_hours_per_day * gpu_cost


RENDERER = "kair_tui.render.fleet"


def run(
    session: OpenStore,
    *,
    gpu_cost: Annotated[float | None, GPU_COST] = None,
    report: Annotated[Path | None, REPORT] = None,
) -> FleetResult:
    """Prices the jobs that are not priced yet, and puts all together. Raises InputError where the store has none."""
    from kair_engine.fleet import fleet_of
    from kair_tui.commands.stored_costs import costs_of

    require_form(report)
    found, damaged = session.store.listing()
    if not found:
        raise InputError(f"no job in the store {session.store.told}", "kair import FOLDER --job NAME puts one there")
    costs, failed = costs_of(session, found)
    result = fleet_of(session.store.told, [*_rows(found, costs, gpu_cost)], [*damaged, *failed])
    result = _with_ledger(session.store.root, result)
    if report is not None:
        from kair_tui.render.report.fleet import fleet_report

        write_report(report, fleet_report(result, _command(session, gpu_cost), made_now()))
    return result


def markdown(session: OpenStore, result: FleetResult, own: Mapping[str, Any]) -> str:
    """The report of the answer, as `-o md` writes it."""
    from kair_tui.render.report.fleet import fleet_report
    from kair_tui.render.report.markdown import markdown as in_markdown

    return in_markdown(fleet_report(result, _command(session, own["gpu_cost"]), made_now()))


def _with_ledger(store: Path, result: FleetResult) -> FleetResult:
    """With how predictions came out, and who is slow in job after job."""
    from kair.app.ledger import looked_up
    from kair_engine.ledger.rap_sheet import records_of
    from kair_engine.ledger.summary import summary_of

    ledger, _ = looked_up(store)
    return replace(
        result,
        ledger=summary_of(ledger.entries) if ledger.entries else None,
        records=records_of(ledger.runs),
        warnings=(*result.warnings, *ledger.warnings),
    )


def _command(session: OpenStore, gpu_cost: float | None) -> str:
    price = [] if gpu_cost is None else ["--gpu-cost", f"{gpu_cost:g}"]
    return shlex.join(["kair", "fleet", "--store", session.store.told, *price])


def _rows(
    found: Sequence["StoredJob"], costs: Mapping[str, StragglerCost | None], gpu_cost: float | None
) -> Iterator[FleetJob]:
    from kair_engine.fleet import week_of

    for job in found:
        cost = costs[job.name]
        if cost is not None:
            yield FleetJob(
                **vars(cost),
                name=job.name,
                world_size=job.world_size,
                ranks=job.ranks,
                steps=job.steps,
                week=week_of(cost.recorded_at or job.imported_at),
                cost_per_day=money_per_day(cost, gpu_cost),
            )
