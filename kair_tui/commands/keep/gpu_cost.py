"""The price of a GPU hour, as commands about the store take it."""

from typing import Final

from kair_engine.results.runs.fleet import StragglerCost
from kair_tui.cli.parameters import Option

GPU_COST: Final = Option(
    "--gpu-cost", "The price of a GPU hour; what is wasted is then priced in money too.", metavar="PRICE", minimum=0
)


def money_per_day(cost: StragglerCost, gpu_cost: float | None) -> float | None:
    """What the wasted hours of a day cost; None where they, or their price, are not known."""
    return None if cost.gpu_hours_per_day is None or gpu_cost is None else cost.gpu_hours_per_day * gpu_cost
