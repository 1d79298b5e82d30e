"""Plays every policy against every kind of job: the rows of `kair mitigate simulate`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np

from kair_engine.errors import InputError, UsageError
from kair_engine.results.mitigate import SimulatedPolicy
from kair_mitigate.policy.job_patterns import PATTERNS
from kair_mitigate.policy.loading import Guarded, own_policy
from kair_mitigate.policy.policies import BackupWorkers, Claims, Continuous, Deterministic, EachStep, Policy, Static
from kair_mitigate.policy.simulation import Simulated, simulate

DEADLINE = 1.25
"""In medians of the units' computing time."""
POLICIES: dict[str, Callable[[], Policy]] = {
    "continuous": Continuous,
    "continuous-deadline": lambda: Continuous(deadline=DEADLINE),
    "deterministic": Deterministic,
    "each-step": EachStep,
    "static": Static,
    "claims": Claims,
}
"""Policies that can control a job."""
SIMULATED: dict[str, Callable[[], Policy]] = {
    **POLICIES,
    "each-step-no-delay": lambda: EachStep(by_ranks=True),
    "backup-workers": BackupWorkers,
}
STEPS = 3000


def policy_of(name: str, report: Callable[[str], None]) -> Policy:
    """Return a policy that can control a job; `report` receives the mistakes of a user's own policy.

    Raises UsageError or InputError if there is no such policy.
    """
    make = _maker(name, POLICIES)
    return Guarded(make(), name, report) if ":" in name else make()


def simulated_policy(name: str) -> Callable[[], Policy]:
    """Return a factory of the policy for simulations, which raise InputError if a user's own makes a mistake."""
    make = _maker(name, SIMULATED)
    return (lambda: Guarded(make(), name, _stop, simulated=True)) if ":" in name else make


def _maker(name: str, known: Mapping[str, Callable[[], Policy]]) -> Callable[[], Policy]:
    if ":" in name:
        return own_policy(name)
    if name not in known:
        raise UsageError(f"no policy {name!r}: {', '.join(known)}, or your own as module:class")
    return known[name]


def _stop(text: str) -> NoReturn:
    raise InputError(text)


def simulated_rows(ranks: int, draws: int, chosen: Sequence[str]) -> Iterator[SimulatedPolicy]:
    """Yield the chosen policies, each against `draws` jobs of each pattern. Raises UsageError, InputError."""
    for name in chosen:
        make = simulated_policy(name)
        for pattern in PATTERNS:
            played = [simulate(make(), pattern, ranks, STEPS, seed) for seed in range(draws)]
            yield row_of(name, pattern.name, ranks, STEPS, played)


def row_of(policy: str, pattern: str, ranks: int, steps: int, played: Sequence[Simulated]) -> SimulatedPolicy:
    """Return the mean results of a policy over these jobs."""

    def mean(name: str) -> float:
        return float(np.mean([getattr(one, name) for one in played]))

    resizes = 1000 * mean("resizes") / max(steps, 1)
    return SimulatedPolicy(policy, pattern, ranks, mean("speed_up"), resizes, mean("restarts"), mean("redone_share"))
