"""How fast what captured takes of two hosts sent was delivered, and what the slower host lost by it.

python benchmarks/real/delivered.py TAKES

One line for each take with a slow link, and one of all others: triage accuses a host for its network where that costs
(docs/methods/triage.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from captured import open_captured
from evaluate import recorded
from truth import delivering_share, median_step_ns

BYTES_PER_GBIT: Final = 1e9 / 8


def main() -> int:
    """Print the lines of the takes of the command line; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("takes", type=Path, help="a folder that record.py filled with captured takes")
    parser.add_argument("--seeds", default="0:1000000", help="FIRST:STOP")
    options = parser.parse_args()
    healthy: list[tuple[float, float]] = []
    for folder in recorded(options.takes, options.seeds):
        document = json.loads((folder / "take.json").read_text(encoding="utf-8"))
        told = compared(folder, document)
        if told is None:
            continue
        host, rate, slower, lost = told
        if needed := delivering_share(document):
            print(
                f"{folder.name}: a link that needs {needed:.0%} of the step, {document['take']['steps']} steps: {host} "
                f"at {rate / BYTES_PER_GBIT:.2f} Gb/s, {slower:.1f} times slower, loses {lost:.1%} of the step"
            )
        else:
            healthy.append((lost, slower))
    if healthy:
        print(
            f"{len(healthy)} with healthy networks: the slower host loses at most {max(healthy)[0]:.1%} of the step; "
            f"it is at most {max(slower for _, slower in healthy):.1f} times slower"
        )
    return 0


def compared(folder: Path, document: dict[str, Any]) -> tuple[str, float, float, float] | None:
    """Of the host whose transfers are slower: its name, bytes per second, how many times slower, the step's share lost.

    None where there are not two hosts that send to one another.
    """
    from kair_engine.triage.slow_network import between_hosts

    of = {ends[0]: one for ends, one in between_hosts(open_captured(folder / "store").job).items()}
    if len(of) != 2:
        return None
    (host, slow), (_, fast) = sorted(of.items(), key=lambda one: one[1].bytes_per_s)
    slower = fast.bytes_per_s / slow.bytes_per_s
    return host, slow.bytes_per_s, slower, slow.ns_per_step * (1 - 1 / slower) / median_step_ns(document)


if __name__ == "__main__":
    sys.exit(main())
