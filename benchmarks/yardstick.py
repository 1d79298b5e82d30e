"""How fast this machine is at the moment: the CPU time of a piece of work that never changes.

    python benchmarks/yardstick.py [--json]

Machines are shared, and the same core can take twice as long an hour later. `make benchmark` runs this before and after
each of its parts, and compares two runs as if the machine had been equally fast in both.
"""

import argparse
import time

import numpy as np
from measuring import report


def work() -> None:
    """Count in Python, as reading and printing do, and sort arrays that are larger than a core's cache."""
    counts: dict[int, int] = {}
    for number in range(1_200_000):
        counts[number & 4095] = counts.get(number & 4095, 0) + number
    values = np.random.default_rng(0).random(1_000_000)
    for _ in range(2):
        np.cumsum(values[np.argsort(values, kind="stable")])


def main() -> None:
    """Print the least of three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    took = []
    as_json = parser.parse_args().json
    for _ in range(3):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    report("yardstick", [{"what": "a fixed piece of work", "CPU s": min(took)}], as_json=as_json)


if __name__ == "__main__":
    main()
