"""Every policy against every kind of job: the rows of `kair mitigate simulate`."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kair_engine.results.mitigate import SimulatedPolicy
from kair_mitigate.policy.job_patterns import PATTERNS
from kair_mitigate.policy.policies import BackupWorkers, Claims, Continuous, Deterministic, EachStep, Policy, Static
from kair_mitigate.policy.simulation import Simulated, simulate, simulate_recorded

DEADLINE = 1.25
"""Times the median unit's computing."""
POLICIES: dict[str, Callable[[], Policy]] = {
    "continuous": Continuous,
    "continuous-deadline": lambda: Continuous(deadline=DEADLINE),
    "deterministic": Deterministic,
    "each-step": EachStep,
    "static": Static,
}
"""Those that a job can be controlled by."""
SIMULATED: dict[str, Callable[[], Policy]] = {
    **POLICIES,
    "claims": Claims,
    "each-step-no-delay": lambda: EachStep(by_ranks=True),
    "backup-workers": BackupWorkers,
}
STEPS = 3000


def policy_of(name: str) -> Policy:
    """One that a job can be controlled by. Raises ValueError for others."""
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}: {', '.join(POLICIES)}")
    return POLICIES[name]()


def simulated_rows(ranks: int, draws: int, chosen: Sequence[str]) -> Iterator[SimulatedPolicy]:
    """Of the chosen policies, each against `draws` jobs of each pattern. Raises ValueError for others."""
    for name in _known(chosen):
        for pattern in PATTERNS:
            played = [simulate(SIMULATED[name](), pattern, ranks, STEPS, seed) for seed in range(draws)]
            yield _row(name, pattern.name, ranks, STEPS, played)


def recorded_rows(
    compute_s: npt.NDArray[np.float64], rest_s: npt.NDArray[np.float64], sizes: Sequence[int], chosen: Sequence[str]
) -> Iterator[SimulatedPolicy]:
    """Of the chosen policies against a recorded job: its seconds of computing (steps × ranks), and the rest."""
    for name in _known(chosen):
        played = simulate_recorded(SIMULATED[name](), compute_s, rest_s, np.array(sizes, dtype=np.int64))
        yield _row(name, "as recorded", len(sizes), len(rest_s), [played])


def _known(chosen: Sequence[str]) -> Sequence[str]:
    if unknown := [name for name in chosen if name not in SIMULATED]:
        raise ValueError(f"no policy {unknown[0]!r}: {', '.join(SIMULATED)}")
    return chosen


def _row(policy: str, pattern: str, ranks: int, steps: int, played: Sequence[Simulated]) -> SimulatedPolicy:
    def mean(name: str) -> float:
        return float(np.mean([getattr(one, name) for one in played]))

    resizes = 1000 * mean("resizes") / max(steps, 1)
    return SimulatedPolicy(policy, pattern, ranks, mean("speed_up"), resizes, mean("restarts"), mean("redone_share"))
