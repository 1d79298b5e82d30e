"""What one coordinator takes with many hosts, and how long their agents wait for it.

Agents of `ranks / 8` hosts are simulated in this process, over the loopback: each beats, tells its ranks' steps, and
waits for both to be answered. The coordinator is a process of its own. Printed per size: the time from a beat to its
answer, that until rows are kept, the share of a core and the memory that the coordinator took, and how many answers
were missing.

    python benchmarks/capture/scale.py --ranks 8,256,2048 --seconds 20
"""

import argparse
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kair_capture.agent.step_rows import ROW
from kair_capture.places import JobPlaces
from kair_capture.wire import Beat, Datagram, Host, Kind, Rows, read_key, sealed, unsealed

ROOT = Path(__file__).parents[2]
RANKS_A_HOST = 8
STEP_S = 1.0
"""A step of the simulated job; jobs of thousands of ranks take seconds for theirs."""


@dataclass
class SimulatedHost:
    """One agent: its number, and what it waits for."""

    number: int
    sender: int = field(default_factory=lambda: secrets.randbits(64))
    sequence: int = 0
    step: int = 0
    due: float = 0.0
    asked: dict[int, tuple[Kind, float]] = field(default_factory=dict)


class Crowd:
    """All agents, over sockets of sixteen addresses: a coordinator limits what it hears from each."""

    def __init__(self, places: JobPlaces, ranks: int) -> None:
        self.key = read_key(places.key, places.job)
        address = json.loads(places.address.read_text())
        self.sockets = [_connected(f"127.0.1.{number + 1}", address) for number in range(16)]
        self.ranks = ranks
        self.hosts = [SimulatedHost(number) for number in range(-(-ranks // RANKS_A_HOST))]
        self.by_sender = {host.sender: host for host in self.hosts}
        self.epoch = 0
        self.took: dict[Kind, list[float]] = {Kind.BEAT: [], Kind.ROWS: [], Kind.HOST: []}
        self.chance = np.random.default_rng(1)

    def ask(self, host: SimulatedHost, kind: Kind, body: bytes) -> None:
        host.sequence += 1
        host.asked[host.sequence] = (kind, time.perf_counter())
        self.sockets[host.number % 16].send(
            sealed(self.key, Datagram(kind, self.epoch, host.sender, host.sequence, body))
        )

    def rows(self, host: SimulatedHost) -> bytes:
        rows = np.zeros(RANKS_A_HOST, ROW)
        rows["rank"] = np.arange(RANKS_A_HOST) + host.number * RANKS_A_HOST
        rows["step"], rows["begin_us"] = host.step, 10**15 + host.step * round(STEP_S * 1e6)
        rows["step_us"] = round(STEP_S * 1e6)
        rows["self_us"] = (0.8e6 * (1 + np.abs(self.chance.normal(0, 0.03, RANKS_A_HOST)))).astype(np.uint32)
        return Rows(host.step, rows.tobytes()).packed()

    def hear(self) -> None:
        for sock in self.sockets:
            self._hear(sock)

    def _hear(self, sock: socket.socket) -> None:
        while True:
            try:
                reply = unsealed(self.key, sock.recv(2000))
            except BlockingIOError:
                return
            host = self.by_sender[reply.sender]
            kind, asked = host.asked.pop(reply.sequence)
            if reply.kind == Kind.EPOCH_REPLY:
                self.epoch = reply.epoch
            else:
                self.took[kind].append((time.perf_counter() - asked) * 1000)

    def meet(self, host: SimulatedHost) -> None:
        """Hears the number of the conversation, by a first question."""
        self.ask(host, Kind.BEAT, Beat().packed())
        while not self.epoch:
            select.select(self.sockets, [], [], 1)
            self.hear()

    def introduce(self) -> None:
        for host in self.hosts:
            ranks = tuple(range(host.number * RANKS_A_HOST, (host.number + 1) * RANKS_A_HOST))
            self.ask(host, Kind.HOST, Host(f"node-{host.number}", self.ranks, ranks).packed())
            select.select(self.sockets, [], [], 0.01)
            self.hear()

    def run(self, seconds: float) -> None:
        """Each host in its own second's moment, as real ones would."""
        began = time.monotonic()
        for at, host in enumerate(self.hosts):
            host.due = began + at / len(self.hosts)
        queue = list(self.hosts)
        while (now := time.monotonic()) < began + seconds:
            host = queue[0]
            if host.due > now:
                select.select(self.sockets, [], [], host.due - now)
                self.hear()
                continue
            queue.append(queue.pop(0))
            host.due += STEP_S
            self.ask(host, Kind.BEAT, Beat(ranks=RANKS_A_HOST).packed())
            self.ask(host, Kind.ROWS, self.rows(host))
            host.step += 1
            self.hear()
        time.sleep(0.5)
        self.hear()


def _connected(source: str, address: dict[str, Any]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind((source, 0))
    sock.connect((address["host"], address["port"]))
    sock.setblocking(False)
    return sock


def measured(ranks: int, seconds: float) -> dict[str, object]:
    """One coordinator with so many ranks."""
    with tempfile.TemporaryDirectory(prefix="kair-scale-") as folder:
        places = JobPlaces(Path(folder), "scale")
        arguments = ("coordinator", "--job", "scale", "--store", folder, "--listen", "127.0.0.1:0", "-q")
        process = subprocess.Popen([sys.executable, "-m", "kair_tui", *arguments], cwd=ROOT)
        try:
            while not places.address.exists():
                time.sleep(0.1)
            crowd = Crowd(places, ranks)
            crowd.meet(crowd.hosts[0])
            crowd.introduce()
            crowd.took[Kind.BEAT].clear()
            before, began = _cpu_s(process.pid), time.monotonic()
            crowd.run(seconds)
            cpu, took = _cpu_s(process.pid) - before, time.monotonic() - began
            memory = _memory_mb(process.pid)
        finally:
            process.terminate()
            process.wait()
    beats, rows = np.array(crowd.took[Kind.BEAT]), np.array(crowd.took[Kind.ROWS])
    return {
        "ranks": ranks,
        "hosts": len(crowd.hosts),
        "seconds": round(took, 1),
        "beat_ms_median": round(float(np.median(beats)), 3),
        "beat_ms_p99": round(float(np.quantile(beats, 0.99)), 3),
        "rows_kept_ms_median": round(float(np.median(rows)), 3),
        "rows_kept_ms_p99": round(float(np.quantile(rows, 0.99)), 3),
        "unanswered": sum(len(host.asked) for host in crowd.hosts),
        "asked": sum(host.sequence for host in crowd.hosts),
        "coordinator_cores": round(cpu / took, 3),
        "coordinator_mb": round(memory),
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="8,256,2048,10000")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    for ranks in map(int, given.ranks.split(",")):
        print(json.dumps(measured(ranks, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
