"""What it costs a training process to ask TCP of its connections to other hosts, in sampled steps.

python benchmarks/capture/connections.py        # by the number of connections

They are made within this machine, from one of its own addresses to another; two bytes go over each before every step.
"""

import argparse
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

from kair_capture.job.connections import BUSIEST, Connections

OWN, PEER = "127.0.0.2", "127.0.0.1"
COUNTS = (1, 8, 64, 256, 1024)


def main() -> None:
    """Prints medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=101, help="to take the median of")
    options = parser.parse_args()
    print(f"connections   found at a window's begin   asked in a step, {BUSIEST} at most")
    for count in COUNTS:
        with ExitStack() as stack:
            senders = connect(count, stack)
            of = Connections()
            found = [took(of.look, senders) for _ in range(options.steps)]
            asked = [took(of.sent, senders) for _ in range(options.steps)]
        print(f"{count:11} {statistics.median(found) * 1e3:24.2f} ms {statistics.median(asked) * 1e6:24.0f} µs")


def connect(count: int, stack: ExitStack) -> list[socket.socket]:
    """So many connections; both ends are of this process."""
    server = stack.enter_context(socket.create_server((PEER, 0), backlog=count))
    senders = []
    for _ in range(count):
        sender = stack.enter_context(socket.create_connection(server.getsockname(), source_address=(OWN, 0)))
        stack.enter_context(server.accept()[0])
        senders.append(sender)
    return senders


def took(ask: Callable[[], object], senders: list[socket.socket]) -> float:
    """Seconds of CPU time, after a step."""
    for sender in senders:
        sender.send(b"it")
    begin = time.thread_time()
    ask()
    return time.thread_time() - begin


if __name__ == "__main__":
    main()
