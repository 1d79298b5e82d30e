"""What one probe recorded. No NumPy here: measuring decides how that is loaded."""

from dataclasses import dataclass
from typing import Final

from kair_engine.results.runs.probe import LinkState, MeasureName, ProbedMachine, Unit
from kair_engine.trace.model import KairWarning

FILE_VERSION: Final = 1
BUSY_ABOVE: Final = 0.05


@dataclass(frozen=True)
class Series:
    """One quantity, again and again; all values are finite and above zero."""

    name: MeasureName
    work: str
    unit: Unit
    values: tuple[float, ...]


@dataclass(frozen=True)
class Recording:
    """Everything that one probe measured."""

    machine: ProbedMachine
    series: tuple[Series, ...]
    link: LinkState
    warnings: tuple[KairWarning, ...] = ()

    def find(self, name: MeasureName) -> Series | None:
        """The series of that name."""
        return next((one for one in self.series if one.name == name), None)


def is_busy(machine: ProbedMachine) -> bool:
    """Whether others took its cores while it was probed, so that its processor's figures are not its own."""
    share = machine.counters.run_queue_share
    return share is not None and share > BUSY_ABOVE


def busy_warning(machine: ProbedMachine) -> KairWarning:
    """How long its thread waited for a core."""
    return KairWarning(
        "busy_machine", figures={"waited_share": machine.counters.run_queue_share or 0}, about=machine.host
    )
