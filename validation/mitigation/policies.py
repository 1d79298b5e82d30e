"""Prints, as Markdown, how much faster each policy makes a simulated job than one that is left alone.

    python validation/mitigation/policies.py [--ranks 16 64] [--draws 30] [--patterns mix transient]

The first table has a cell per policy: the mean speed-up ± 1.96 standard errors [resizes per 1,000 steps; restarts; %
of the samples that came again], and the bound, which knows every step in advance and is no policy. The second table
divides the speed-up of claims by that of others, draw by draw.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from bound import bound_speed_up

from kair_mitigate.policy import prices
from kair_mitigate.policy.job_patterns import PATTERNS, conditions_of, pattern
from kair_mitigate.policy.simulation import DELAY_STEPS, RESTART_S, simulate
from kair_mitigate.policy.table import SIMULATED

POLICIES = {
    "backup-workers": "backup workers",
    "each-step": "each step (LB-BSP-like), 8 steps late",
    "each-step-no-delay": "each step, no delay",
    "deterministic": "DD once",
    "continuous": "continuous + restart",
    "continuous-deadline": "continuous + deadline 1.25 × median",
    "claims": "claims + restart",
}
COMPARED = ("each-step", "each-step-no-delay", "continuous-deadline")

Draw = Mapping[str, Sequence[float]]
"""(speed-up, resizes, restarts, share that came again) of each policy in one job; of the bound the speed-up."""


def main() -> None:
    """Print the table, then the ratios."""
    options = _options()
    ratios = list[str]()
    print(*_head("ranks, pattern", *POLICIES.values(), "bound"), sep="\n")
    with ProcessPoolExecutor(options.processes) as pool:
        for ranks in options.ranks:
            for name in options.patterns:
                draws = list(pool.map(partial(_draw, name, ranks, options), range(options.draws)))
                print(f"| {ranks}, {name} | {' | '.join(_cells(draws, options.steps))} |", flush=True)
                ratios.append(f"| {ranks}, {name} | {' | '.join(_ratios(draws))} |")
    others = (POLICIES[name] for name in COMPARED)
    print("", *_head("claims divided by", *others, "bound divided by each step, 8 steps late"), *ratios, sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--patterns", nargs="+", default=[known.name for known in PATTERNS], metavar="NAME")
    parser.add_argument("--draws", type=int, default=30, help="jobs of each pattern")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--restart", type=float, default=RESTART_S, metavar="SECONDS")
    parser.add_argument("--delay", type=int, default=DELAY_STEPS, metavar="STEPS", help="from a decision to its plan")
    parser.add_argument(
        "--ski-rental", type=float, default=prices.SKI_RENTAL, help="share of a restart to be lost first"
    )
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def _draw(name: str, ranks: int, options: argparse.Namespace, seed: int) -> Draw:
    prices.SKI_RENTAL = options.ski_rental
    faults, steps, restart_s = pattern(name), options.steps, options.restart
    draw: dict[str, Sequence[float]] = {"bound": [bound_speed_up(conditions_of(faults, ranks, steps, seed), restart_s)]}
    for policy in POLICIES:
        job = simulate(SIMULATED[policy](), faults, ranks, steps, seed, restart_s=restart_s, delay_steps=options.delay)
        draw[policy] = job.speed_up, job.resizes, job.restarts, job.redone_share
    return draw


def _head(*columns: str) -> tuple[str, str]:
    return f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"


def _cells(draws: Sequence[Draw], steps: int) -> Iterator[str]:
    for policy in POLICIES:
        _, resizes, restarts, again = np.mean([draw[policy] for draw in draws], axis=0)
        counts = f"[{1000 * resizes / steps:.0f}; {restarts:.1f}; {100 * again:.1f} %]"
        yield f"{_interval([draw[policy][0] for draw in draws])} {counts}"
    yield _interval([draw["bound"][0] for draw in draws])


def _ratios(draws: Sequence[Draw]) -> Iterator[str]:
    for policy in COMPARED:
        yield _interval([draw["claims"][0] / draw[policy][0] for draw in draws])
    yield _interval([draw["bound"][0] / draw["each-step"][0] for draw in draws])


def _interval(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ± {1.96 * np.std(values, ddof=1) / len(values) ** 0.5:.2f}"


if __name__ == "__main__":
    main()
