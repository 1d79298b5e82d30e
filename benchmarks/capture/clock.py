"""How far a host's clock is really off, beside what capture says of it.

Two hosts are two network namespaces joined by a pair of virtual interfaces (two sockets on the loopback where that is
not permitted). Their clocks are one, so the truth is known: an offset and a drift are added to one host's stamps, and a
relay between both delays datagrams, one way more than the other where asked for. (`tc netem` would do that too; not
every kernel has it.)

    python benchmarks/capture/clock.py --seconds 60
"""

import argparse
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from kair_capture.clocks import ClockFilter, Exchange, receive, stamp_arrivals

STAMPS = struct.Struct("<QQQ")
OFFSET_NS, DRIFT = 3_300_000, 20e-6
SERVER, CLIENT = "10.231.77.1", "10.231.77.2"
CASES = {
    "direct": (0.0, 0.0, 0.0),
    "relayed": (50.0, 50.0, 0.0),
    "asymmetric": (50.0, 50.0, 200.0),
    "busy": (50.0, 500.0, 0.0),
}
"""µs: each way's delay, the mean of a random one on top, and what the way there takes longer."""


def serve(sock: socket.socket) -> None:
    """Answers each datagram with its number and two stamps."""
    while True:
        data, sender, stamp = receive(sock, 100)
        if data == b"end":
            return
        sock.sendto(STAMPS.pack(int.from_bytes(data[:8], "little"), stamp, time.time_ns()), sender)


def relay(sock: socket.socket, server: tuple[str, int], delays: tuple[float, float, float], parent: int) -> None:
    """Hands on what comes, later."""
    base, jitter, more = delays
    waiting: list[tuple[float, int, bytes, tuple[str, int]]] = []
    client = server
    count = 0
    while os.getppid() == parent:
        until = waiting[0][0] if waiting else time.perf_counter() + 0.5
        # The last 200 µs without sleep: what a sleep is late by would be jitter of its own.
        pause = max(until - time.perf_counter() - 200e-6, 0)
        if select.select([sock], [], [], pause)[0]:
            data, sender = sock.recvfrom(100)
            there = sender != server
            client = sender if there else client
            late = base + random.expovariate(1 / jitter) + (more if there else 0.0)
            count += 1
            target = server if there else client
            heapq.heappush(waiting, (time.perf_counter() + late * 1e-6, count, data, target))
        while waiting and waiting[0][0] <= time.perf_counter():
            _, _, data, target = heapq.heappop(waiting)
            sock.sendto(data, target)


def ask(server: tuple[str, int], seconds: float, every: float) -> dict[str, float]:
    """The client: its stamps are of a clock that is off; what is fitted is held against that."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stamp_arrivals(sock)
    sock.connect(server)
    began = time.time_ns()

    def mine(true_ns: int) -> int:
        return true_ns + OFFSET_NS + round(DRIFT * (true_ns - began))

    clock, found, missing = ClockFilter(), [], 0
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        number += 1
        asked = time.time_ns()
        sock.send(number.to_bytes(8, "little"))
        if not select.select([sock], [], [], 1.0)[0]:
            missing += 1
            continue
        data, _, stamp = receive(sock, 100)
        answered, received, replied = STAMPS.unpack(data)
        if answered != number:
            continue
        clock.add(Exchange(mine(asked), received, replied, mine(stamp)))
        fit, now = clock.fit, time.time_ns()
        if fit is not None:
            truth = mine(now) - now
            found.append((abs(fit.offset_at(mine(now)) - truth), fit.bound_at(mine(now))))
        time.sleep(every * random.uniform(0.8, 1.2))
    errors = sorted(error / 1000 for error, _ in found)
    bounds = sorted(bound / 1000 for _, bound in found)
    return {
        "exchanges": len(found),
        "missing": missing,
        "error_us_median": round(errors[len(errors) // 2], 2),
        "error_us_p99": round(errors[int(len(errors) * 0.99)], 2),
        "bound_us_median": round(bounds[len(bounds) // 2], 2),
        "within_bound": round(sum(error <= bound for error, bound in found) / len(found), 4),
    }


class Hosts:
    """Two namespaces, or this one alone."""

    def __init__(self) -> None:
        self.name = f"kair-clock-{os.getpid()}"
        self.apart = self._made()
        self.server = SERVER if self.apart else "127.0.0.1"

    def _made(self) -> bool:
        link, other = f"kc{os.getpid()}a"[-15:], f"kc{os.getpid()}b"[-15:]
        inside = f"ip netns exec {self.name} ip"
        commands = [
            f"ip netns add {self.name}",
            f"ip link add {link} type veth peer name {other} netns {self.name}",
            f"ip addr add {SERVER}/30 dev {link}",
            f"ip link set {link} up",
            f"{inside} addr add {CLIENT}/30 dev {other}",
            f"{inside} link set {other} up",
            f"{inside} link set lo up",
        ]
        for command in commands:
            try:
                subprocess.run(command.split(), check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                self.close()
                return False
        return True

    def command(self, arguments: list[str]) -> list[str]:
        """On the other host."""
        inside = ["ip", "netns", "exec", self.name] if self.apart else []
        return [*inside, sys.executable, str(Path(__file__)), *arguments]

    def close(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


def bound_socket(host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stamp_arrivals(sock)
    sock.bind((host, 0))
    return sock


def case(hosts: Hosts, name: str, seconds: float, every: float) -> dict[str, object]:
    """One row."""
    parent, children = os.getpid(), []
    server = bound_socket(hosts.server)
    target = server.getsockname()
    children.append(_forked(lambda: serve(server)))
    if CASES[name][0]:
        middle = bound_socket(hosts.server)
        address, target = target, middle.getsockname()
        children.append(_forked(lambda: relay(middle, address, CASES[name], parent)))
    try:
        asking = hosts.command(
            ["--client", f"{target[0]}:{target[1]}", "--seconds", str(seconds), "--every", str(every)]
        )
        run = subprocess.run(asking, check=True, capture_output=True, text=True)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    return {"case": name, "namespaces": hosts.apart, **json.loads(run.stdout)}


def _forked(work) -> int:  # noqa: ANN001
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return child


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=0.2)
    parser.add_argument("--client", default="")
    given = parser.parse_args()
    if given.client:
        host, port = given.client.split(":")
        print(json.dumps(ask((host, int(port)), given.seconds, given.every)))
        return
    hosts = Hosts()
    try:
        for name in CASES:
            print(json.dumps(case(hosts, name, given.seconds, given.every)), flush=True)
    finally:
        if hosts.apart:
            hosts.close()


if __name__ == "__main__":
    main()
