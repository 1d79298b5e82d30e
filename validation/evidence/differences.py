"""Are planted differences between ranks found and attributed, and is nothing said of healthy jobs?

    python validation/evidence/differences.py [--planted 100] [--twins 1000] [--seed 7]

Jobs of 3 to 128 ranks, whose identities differ as healthy ranks' do: by place, host, process, address and design. In
each of the planted ones one rank, or one host of several, has something else: a driver, a governor, a PCIe width, a
variable, an image, a device. It is found if it is listed, and attributed if it is listed with its ranks and its value
and nothing else is. In twins nothing is to be listed.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from random import Random

sys.path += [str(Path(__file__).resolve().parents[2] / "tests")]

from support.rank_identities import healthy_job, planted

from kair_engine.evidence.differences import differences


def main() -> int:
    """Prints the counts; 1 where one of them is not what it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", type=int, default=100)
    parser.add_argument("--twins", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    random = Random(asked.seed)
    found = attributed = 0
    for number in range(asked.planted):
        job, truth = planted(random, number)
        told = differences(truth.identities, truth.ranks, job.roles)
        found += any(one.what == truth.what and set(one.ranks) & set(truth.ranks) for one in told)
        right = [(one.what, one.ranks, one.value, one.accused) for one in told]
        if right == [(truth.what, truth.ranks, truth.value, True)]:
            attributed += 1
        else:
            print(f"planted {truth.what} = {truth.value} on {truth.ranks} of {len(job.identities)}: told {right}")
    false: Counter[str] = Counter()
    for _ in range(asked.twins):
        job = healthy_job(random)
        told = differences(job.identities, (), job.roles)
        false["jobs"] += bool(told)
        false.update({one.what for one in told})
    print(f"planted {asked.planted}, found {found}, attributed {attributed}")
    print(f"twins {asked.twins}, of which {false.pop('jobs', 0)} are said to have a difference", dict(false) or "")
    return int(found < asked.planted or attributed < asked.planted or bool(false))


if __name__ == "__main__":
    sys.exit(main())
