"""Prints, as Markdown, how much faster each policy makes a simulated job than one that is left alone.

Each cell: the mean speed-up over the seeds [resizes per 1,000 steps; restarts; % of the samples done again].
"""

import argparse
from collections.abc import Callable

from kair_mitigate.policy.job_patterns import PATTERNS, Pattern
from kair_mitigate.policy.policies import BackupWorkers, Continuous, Deterministic, EachStep, Policy
from kair_mitigate.policy.simulation import DELAY_STEPS, RESTART_S, Simulated, simulate

POLICIES: dict[str, Callable[[], Policy]] = {
    "backup workers": BackupWorkers,
    "each step (LB-BSP-like)": EachStep,
    "DD once": Deterministic,
    "continuous + restart": Continuous,
    "… + deadline 1.25 × median": lambda: Continuous(deadline=1.25),
}


def main() -> None:
    options = _options()
    print(f"| ranks, pattern | {' | '.join(POLICIES)} |")
    print("|---" * (len(POLICIES) + 1) + "|")
    for ranks in options.ranks:
        for pattern in PATTERNS:
            cells = [_cell(policy, pattern, ranks, options) for policy in POLICIES.values()]
            print(f"| {ranks}, {pattern.name} | {' | '.join(cells)} |", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seeds", type=int, default=5, help="jobs of each pattern")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--restart", type=float, default=RESTART_S, metavar="SECONDS")
    parser.add_argument("--delay", type=int, default=DELAY_STEPS, metavar="STEPS", help="from a decision to its plan")
    return parser.parse_args()


def _cell(policy: Callable[[], Policy], pattern: Pattern, ranks: int, options: argparse.Namespace) -> str:
    played = [
        simulate(policy(), pattern, ranks, options.steps, seed, restart_s=options.restart, delay_steps=options.delay)
        for seed in range(options.seeds)
    ]
    return (
        f"{_mean(played, 'speed_up'):.2f} [{1000 * _mean(played, 'resizes') / options.steps:.0f}; "
        f"{_mean(played, 'restarts'):.1f}; {100 * _mean(played, 'redone_share'):.1f} %]"
    )


def _mean(played: list[Simulated], name: str) -> float:
    return float(sum(getattr(one, name) for one in played)) / len(played)


if __name__ == "__main__":
    main()
