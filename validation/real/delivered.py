"""How fast what captured takes of several hosts sent was delivered, and what the slowest host lost by it.

python validation/real/delivered.py TAKES

One line for each take with a slow link, and one of all others: triage accuses a host for its network where that costs
(docs/methods.md). Of each the longest that surely queues between two hosts, and by how many times later than
others' what the slowest host sends and receives is acknowledged, of three hosts and more.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
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
    healthy: list[Delivered] = []
    for folder in recorded(options.takes, options.seeds):
        document = json.loads((folder / "take.json").read_text(encoding="utf-8"))
        told = Delivered.of(folder, document)
        if told is None:
            continue
        if needed := delivering_share(document):
            print(
                f"{folder.name}: a link that needs {needed:.0%} of the step, {document['take']['steps']} steps: "
                f"{told.host} at {told.bytes_per_s / BYTES_PER_GBIT:.2f} Gb/s, {told.slower:.1f} times slower, loses "
                f"{told.lost:.1%} of the step; transfers take {told.longest:.1%}; {told.queued_ms:.2f} ms queue, "
                f"{told.later:.1f} times later"
            )
        else:
            healthy.append(told)
    if healthy:
        lost, slower, longest = (max(getattr(one, name) for one in healthy) for name in ("lost", "slower", "longest"))
        queued = sorted(one.queued_ms for one in healthy)
        print(
            f"{len(healthy)} with healthy networks: the slowest host loses at most {lost:.1%} of the step; it is at "
            f"most {slower:.1f} times slower; transfers take at most {longest:.1%} of the step; most queues for "
            f"{', '.join(f'{ms:.2f}' for ms in queued[-3:])} ms"
        )
    return 0


@dataclass(frozen=True)
class Delivered:
    """Of a take the host whose transfers are slowest, and the transfers that take longest; shares of the step."""

    host: str
    bytes_per_s: float
    slower: float
    """Times, beside the median of other hosts."""
    lost: float
    """By that."""
    longest: float
    queued_ms: float
    later: float
    """Times; NaN of two hosts."""

    @classmethod
    def of(cls, folder: Path, document: dict[str, Any]) -> Delivered | None:
        """None where there are not several hosts that send to one another."""
        from kair_engine.triage.slow_network import between_hosts, times_later

        step_ns = median_step_ns(document)
        between = between_hosts(open_captured(folder / "store").job, step_ns)
        longest_of = {
            host: max((one for ends, one in between.items() if ends[0] == host), key=lambda one: one.ns_per_step)
            for host in {ends[0] for ends in between}
        }
        if len(longest_of) <= 1:
            return None
        host = max(longest_of, key=lambda host: longest_of[host].ns_per_step)
        slow = longest_of[host]
        usual = median(one.bytes_per_s for ends, one in between.items() if ends[0] != host)
        lost_ns = max(slow.ns_per_step - slow.bytes_per_step / usual * 1e9, 0.0)
        return cls(
            host,
            slow.bytes_per_s,
            usual / slow.bytes_per_s,
            lost_ns / step_ns,
            slow.ns_per_step / step_ns,
            max(one.queued_ns for one in between.values()) / 1e6,
            times_later(between, host),
        )


if __name__ == "__main__":
    sys.exit(main())
