"""How long everything in one job takes, before anybody waits for anybody: noise, and room for faults to change it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from device_operations import MS, Operation
from layouts import JobLayout
from programs import Program

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

BETWEEN_LAUNCHES_NS = 6_000.0
LAUNCH_NS, LAUNCH_SPREAD_NS = 8_000.0, 7_000.0
LEAVE_SPREAD_NS = 3_000.0
"""Members of a collective leave it within this time."""
FETCH_NS = 0.5 * MS
STARTS_APART_NS = 0.3 * MS
"""Ranks begin the job's first step within this time."""


@dataclass(frozen=True)
class Noise:
    """How much operations vary for no reason."""

    operation: float = 0.03
    """Sigma of every operation's lognormal factor."""
    spread: float = 0.005
    """Standard deviation of the GPUs' persistent speeds."""
    fetch: float = 0.3
    """Sigma of the input fetches' lognormal factor."""
    tail_probability: float = 1e-4
    """Share of kernels that take three to ten times as long once, for no reason that lasts."""
    shortest_tail: float = 3.0
    longest_tail: float = 10.0


@dataclass(frozen=True)
class JobCosts:
    """Nanoseconds per step, operation and rank of a stage; one array per stage. Faults change them in place."""

    program: Program
    device: tuple[Floats, ...]
    """On the device; of communication the transfer alone, the same for all members (of a send, not its receive)."""
    before_launch: tuple[Floats, ...]
    """On the host, since the launch before."""
    launch: tuple[Floats, ...]
    leave: tuple[Floats, ...]
    """How much later than the first member one can leave; of the stage's communication only, in order."""
    fetch: Floats
    """(steps × ranks)."""
    begin: Floats
    """When each rank begins its first step."""

    @property
    def layout(self) -> JobLayout:
        """The job's."""
        return self.program.layout

    @property
    def steps(self) -> int:
        """How many the job runs."""
        return len(self.fetch)


def communication_slots(operations: tuple[Operation, ...]) -> list[int]:
    """Indices of collectives, sends and receives."""
    return [index for index, operation in enumerate(operations) if operation.communication]


def compute_slots(operations: tuple[Operation, ...]) -> list[int]:
    """Indices of kernels."""
    return [index for index, operation in enumerate(operations) if operation.kind == "compute"]


def forward_slots(operations: tuple[Operation, ...]) -> list[int]:
    """Indices of forward kernels: before their launches the host can pause."""
    return [i for i, operation in enumerate(operations) if operation.kind == "compute" and operation.phase == "forward"]


def noisy_costs(
    program: Program,
    steps: int,
    noise: Noise,
    random: np.random.Generator,
    devices: np.random.Generator | None = None,
) -> JobCosts:
    """The costs of a job without faults. What is drawn depends on the program and the steps alone.

    `devices` draws the GPUs' persistent speeds.
    """
    layout = program.layout
    parts = [_stage_costs(operations, layout, steps, noise, random) for operations in program.stages]
    device, before, launch, leave = (tuple(part[index] for part in parts) for index in range(4))
    shape = (steps, layout.ranks)
    fetch = FETCH_NS * _lognormal(random.standard_normal(shape), noise.fetch)
    begin = STARTS_APART_NS * random.random(layout.ranks)
    speed = 1 + noise.spread * (devices or random).standard_normal(layout.ranks)
    costs = JobCosts(program, device, before, launch, leave, fetch, begin)
    for stage, operations in enumerate(program.stages):
        of_stage = speed[layout.stage_ranks(stage)]
        device[stage][:, compute_slots(operations)] *= of_stage
    _add_tails(costs, noise, random)
    return costs


def quiet_costs(program: Program) -> JobCosts:
    """One step in which everything takes as long as the program says."""
    layout = program.layout
    count = layout.ranks_per_stage

    def per_rank(values: list[float]) -> Floats:
        return np.repeat(np.array(values)[None, :, None], count, axis=2)

    return JobCosts(
        program,
        device=tuple(per_rank([one.nominal_ns for one in stage]) for stage in program.stages),
        before_launch=tuple(per_rank(_before_launch(stage, layout)) for stage in program.stages),
        launch=tuple(per_rank([LAUNCH_NS + LAUNCH_SPREAD_NS / 2] * len(stage)) for stage in program.stages),
        leave=tuple(per_rank([0.0] * len(communication_slots(stage))) for stage in program.stages),
        fetch=np.full((1, layout.ranks), FETCH_NS),
        begin=np.zeros(layout.ranks),
    )


def _stage_costs(
    operations: tuple[Operation, ...], layout: JobLayout, steps: int, noise: Noise, random: np.random.Generator
) -> tuple[Floats, Floats, Floats, Floats]:
    shape = (steps, len(operations), layout.ranks_per_stage)
    nominal = np.array([operation.nominal_ns for operation in operations])[None, :, None]
    device = nominal * _lognormal(random.standard_normal(shape), noise.operation)
    communication = communication_slots(operations)
    for index in communication:
        _share_among_members(device[:, index], operations[index].dimension, layout)
    hurry = random.random(shape)
    before = np.array(_before_launch(operations, layout))[None, :, None] * (0.75 + 0.5 * hurry)
    launch = LAUNCH_NS + LAUNCH_SPREAD_NS * hurry**2
    leave = LEAVE_SPREAD_NS * random.random((steps, len(communication), layout.ranks_per_stage))
    return device, before, launch, leave


def _before_launch(operations: tuple[Operation, ...], layout: JobLayout) -> list[float]:
    """What the host needs for Python and the dispatcher."""
    return [
        BETWEEN_LAUNCHES_NS + (0.0 if one.communication else layout.host_share * one.nominal_ns) for one in operations
    ]


def _share_among_members(transfer: Floats, dimension: str | None, layout: JobLayout) -> None:
    """Gives all members of a collective the first one's transfer; `transfer` is (steps × ranks)."""
    if dimension in ("dp", "tp", "ep"):
        members = transfer.reshape(-1, layout.dp, layout.tp)
        members[:] = members[:, :, :1] if dimension == "tp" else members[:, :1]


def _lognormal(normal: Floats, sigma: float) -> Floats:
    """Factors with mean 1."""
    factor: Floats = np.exp(sigma * normal - sigma**2 / 2)
    return factor


def _add_tails(costs: JobCosts, noise: Noise, random: np.random.Generator) -> None:
    for stage, operations in enumerate(costs.program.stages):
        slots = np.array(compute_slots(operations))
        steps, _, ranks = costs.device[stage].shape
        count = random.binomial(steps * len(slots) * ranks, noise.tail_probability)
        where = random.integers(0, (steps, len(slots), ranks), (count, 3))
        longer = noise.shortest_tail + random.exponential((noise.longest_tail - noise.shortest_tail) / 3, count)
        costs.device[stage][where[:, 0], slots[where[:, 1]], where[:, 2]] *= np.minimum(longer, noise.longest_tail)
