"""The excesses of a job as plain arrays: what stage 1's tests of ranks look at, recorded or drawn."""

from collections.abc import Mapping
from functools import cached_property

from kair_engine.arrays import Floats, Ints, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import JobExcess
from kair_engine.stats import median


@dataclass(frozen=True)
class OperatorTable:
    """One operator's excess (steps × ranks), and what is typical per rank."""

    fetches: bool
    excess_ns: Floats
    typical_ns: Floats


@dataclass(frozen=True)
class ExcessTable:
    """Excesses written down, where JobExcess puts them together from its steps."""

    role: Ints
    unit: Ints | None
    by_step_ns: Floats
    step_times_ns: Floats
    work_ns: Floats
    of_operator: Mapping[str, OperatorTable]
    on_device: bool
    host: Ints | None = None
    exposed_waiting_ns: Floats | None = None
    compiling_ns: Floats | None = None

    @cached_property
    def step_time_ns(self) -> float:
        """The median over steps."""
        return float(median(self.step_times_ns))

    @property
    def operators(self) -> Mapping[str, bool]:
        """Whether each operator fetches input."""
        return {name: one.fetches for name, one in self.of_operator.items()}

    def operator_ns(self, name: str) -> tuple[Floats, Floats]:
        """(excess per step and rank, what is typical per rank)."""
        one = self.of_operator[name]
        return one.excess_ns, one.typical_ns


Excesses = JobExcess | ExcessTable


def table_of(job: Excesses) -> ExcessTable:
    """Return the job's excesses, 0 where a rank has no such step."""
    return ExcessTable(
        job.role,
        job.unit,
        zero_for_nan(job.by_step_ns),
        job.step_times_ns,
        job.work_ns,
        {name: OperatorTable(fetches, *job.operator_ns(name)) for name, fetches in job.operators.items()},
        job.on_device,
        job.host,
    )
