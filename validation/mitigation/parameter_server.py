"""A real parameter-server job, a worker of which is slow: a static split of the data against the shard service.

One server process holds the model (logistic regression on made data, plain SGD) and applies gradients as they come;
workers pull the weights, compute the gradient of a batch and push it. A sample costs a worker some time (`--cost-ms`),
the slow worker `--slow` times that, spent asleep so that few cores can stand for many hosts.

    python validation/mitigation/parameter_server.py
    python validation/mitigation/parameter_server.py --kills 20

With `--kills`, workers of the job with the shard service are killed (SIGKILL) at random moments and started again.
Each trial takes 160 s.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kair_mitigate.audit import Audit, AuditLog, audit
from kair_mitigate.shards.client import ShardClient
from kair_mitigate.shards.service import ShardService
from kair_mitigate.shards.shard import Shard, ShardError
from kair_mitigate.shards.store import ShardStore

KEY = b"the key of this trial"
FEATURES = 32
Floats = npt.NDArray[np.float64]
Place = tuple[str, int, Shard, tuple[int, int]]
"""What a gradient is of: worker, its generation, shard, and the positions in it."""
FORK = multiprocessing.get_context("fork")
"""Workers come back at once, as the trial is about their deaths and not about the time Python takes to start."""


@dataclass(frozen=True)
class Trial:
    samples: int
    epochs: int
    workers: int
    batch: int
    shard: int
    cost_s: float
    slow: float
    kills: int
    seed: int

    def cost_of(self, worker: int) -> float:
        """Seconds per sample."""
        return self.cost_s * (self.slow if worker == self.workers - 1 else 1.0)


@dataclass(frozen=True)
class Outcome:
    seconds: float
    samples: tuple[int, ...]
    """Of each worker."""
    loss_before: float
    loss_after: float
    found: Audit
    sums_are_right: bool
    """Of all indices and of their squares, as the workers that computed with them say."""
    kills: int


@dataclass
class Server:
    """The model, and all that is known of what it was trained with."""

    trial: Trial
    log: AuditLog
    apply_once: Callable[[Place, Callable[[], None]], None]
    weights: Floats = field(default_factory=lambda: np.zeros(FEATURES))
    samples: dict[str, int] = field(default_factory=dict)
    index_sums: tuple[int, int] = (0, 0)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):
            while True:
                connection.send(self.weights)
                push = connection.recv()
                with self.lock:
                    connection.send(self.take(*push))

    def take(self, place: Place, gradient: Floats, sums: tuple[int, int]) -> str | None:
        worker, generation, shard, span = place

        def apply() -> None:
            self.weights = self.weights - 0.5 * gradient
            begin, end = span
            row: dict[str, int | str] = {"gen": generation, "worker": worker, "shard": shard.number}
            self.log.write({**row, "epoch": shard.epoch, "begin": begin, "end": end})
            self.samples[worker] = self.samples.get(worker, 0) + end - begin
            self.index_sums = self.index_sums[0] + sums[0], self.index_sums[1] + sums[1]

        try:
            self.apply_once(place, apply)
        except ShardError as error:
            return str(error)
        return None


def made_data(trial: Trial) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(trial.seed)
    inputs = generator.normal(size=(trial.samples, FEATURES))
    truth = generator.normal(size=FEATURES)
    return inputs, (inputs @ truth + generator.normal(size=trial.samples) > 0).astype(np.float64)


def loss_of(weights: Floats, inputs: Floats, labels: Floats) -> float:
    scores = inputs @ weights
    return float(np.mean(np.logaddexp(0, scores) - labels * scores))


class Worker:
    """One worker process's connection to the server, and its computing."""

    def __init__(self, trial: Trial, number: int, server: Path) -> None:
        self.trial, self.number, self.name = trial, number, f"worker {number}"
        self.inputs, self.labels = made_data(trial)
        self.connection = Client(str(server), authkey=KEY)

    def train(self, shard: Shard, span: tuple[int, int], indices: list[int], generation: int) -> None:
        begun = time.perf_counter()
        weights = self.connection.recv()
        inputs, labels = self.inputs[indices], self.labels[indices]
        gradient = inputs.T @ (1 / (1 + np.exp(-inputs @ weights)) - labels) / len(indices)
        time.sleep(max(0.0, begun + self.trial.cost_of(self.number) * len(indices) - time.perf_counter()))
        sums = sum(indices), sum(index * index for index in indices)
        self.connection.send(((self.name, generation, shard, span), gradient, sums))
        refused = self.connection.recv()
        if refused is not None:
            sys.exit(f"{self.name}: {refused}")


def work_by_shards(trial: Trial, number: int, server: Path, address: tuple[str, int]) -> None:
    worker = Worker(trial, number, server)
    with ShardClient(address, KEY, worker.name) as client:
        for shard in client.shards():
            for begin, end in shard.batches(trial.batch):
                worker.train(shard, (begin, end), shard.indices(begin, end), client.generation)
            client.done()


def work_on_own_part(trial: Trial, number: int, server: Path, _address: tuple[str, int]) -> None:
    worker = Worker(trial, number, server)
    first, last = (trial.samples * part // trial.workers for part in (number, number + 1))
    for epoch in range(trial.epochs):
        shard = Shard(number, number, epoch, first, last, None, first, trial.seed)
        order = shard.indices(first, last)
        for begin, end in shard.batches(trial.batch):
            worker.train(shard, (begin, end), order[begin - first : end - first], 1)


def serve(trial: Trial, folder: Path, driver: Connection, *, shards: bool) -> None:
    """The server process: the model, the shard store and its service, until the driver says that all is done."""
    store = ShardStore(folder / "shards.sqlite", most_tries=1000)
    store.make(trial.samples, trial.shard, seed=trial.seed, epochs=trial.epochs, commit="push")
    service = ShardService(store, KEY)

    def by_shard(place: Place, apply: Callable[[], None]) -> None:
        worker, generation, shard, span = place
        store.push(worker, generation, shard.id, span, apply)

    def always(_place: Place, apply: Callable[[], None]) -> None:
        apply()

    server = Server(trial, AuditLog(folder / "rows"), by_shard if shards else always)
    listener = Listener(str(folder / "server"), backlog=64, authkey=KEY)

    def accept() -> None:
        while True:
            with suppress(EOFError, OSError, multiprocessing.AuthenticationError):  # killed while it connected
                threading.Thread(target=server.serve, args=(listener.accept(),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    driver.send(service.start())
    driver.recv()
    with server.lock:
        driver.send((server.weights, server.samples, server.index_sums))
    service.stop()


def run(trial: Trial, *, shards: bool) -> Outcome:
    kills = trial.kills if shards else 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here, there = FORK.Pipe()
        server = FORK.Process(target=serve, args=(trial, folder, there), kwargs={"shards": shards})
        server.start()
        address = here.recv()
        begun = time.perf_counter()
        killed = drive(trial, folder, address, kills, shards=shards)
        seconds = time.perf_counter() - begun
        here.send("end")
        weights, samples, index_sums = here.recv()
        server.join()
        found = audit([folder / "rows"], trial.samples, trial.epochs)
    inputs, labels = made_data(trial)
    return Outcome(
        seconds=seconds,
        samples=tuple(samples.get(f"worker {number}", 0) for number in range(trial.workers)),
        loss_before=loss_of(np.zeros(FEATURES), inputs, labels),
        loss_after=loss_of(weights, inputs, labels),
        found=found,
        sums_are_right=index_sums == expected_sums(trial),
        kills=killed,
    )


def drive(trial: Trial, folder: Path, address: tuple[str, int], kills: int, *, shards: bool) -> int:
    """Runs the workers until all are done, kills some and starts them again; how many."""
    chance = random.Random(trial.seed)
    work = work_by_shards if shards else work_on_own_part

    def start(number: int) -> BaseProcess:
        process = FORK.Process(target=work, args=(trial, number, folder / "server", address))
        process.start()
        return process

    workers = {number: start(number) for number in range(trial.workers)}
    rate = sum(1 / trial.cost_of(number) for number in range(trial.workers))
    gap_s = 0.8 * trial.samples * trial.epochs / rate / (kills + 1)
    killed, running = 0, dict(workers)
    while running:
        next(iter(running.values())).join(gap_s * chance.uniform(0.2, 1.8) if killed < kills else None)
        running = {number: process for number, process in running.items() if process.is_alive()}
        if running and killed < kills:
            number = chance.choice(list(running))
            os.kill(running[number].pid or 0, signal.SIGKILL)
            running[number].join()
            killed += running[number].exitcode == -signal.SIGKILL  # or it had just ended by itself
            workers[number] = running[number] = start(number)
    if any(process.exitcode for process in workers.values()):
        raise SystemExit(f"workers ended with {[process.exitcode for process in workers.values()]}")
    return killed


def expected_sums(trial: Trial) -> tuple[int, int]:
    indices = range(trial.samples)
    return trial.epochs * sum(indices), trial.epochs * sum(index * index for index in indices)


def told(name: str, trial: Trial, outcome: Outcome) -> str:
    total = trial.samples * trial.epochs
    once = "all once" if outcome.found.exactly_once and outcome.sums_are_right else f"NOT ONCE: {outcome.found}"
    parts = ", ".join(f"{100 * samples / total:.0f}" for samples in outcome.samples)
    return (
        f"| {name} | {total / outcome.seconds:.0f} | {outcome.seconds:.1f} | {parts} "
        f"| {outcome.loss_before:.3f} → {outcome.loss_after:.3f} | {outcome.kills} | {once} |"
    )


def asked() -> Trial:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--shard", type=int, default=16, help="samples per shard")
    parser.add_argument("--cost-ms", type=float, default=10.0, help="of a sample, on a healthy worker")
    parser.add_argument("--slow", type=float, default=4.0, help="times the cost, on the last worker")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    return Trial(
        samples=given.samples,
        epochs=given.epochs,
        workers=given.workers,
        batch=given.batch,
        shard=given.shard,
        cost_s=given.cost_ms / 1000,
        slow=given.slow,
        kills=given.kills,
        seed=given.seed,
    )


def main() -> int:
    trial = asked()
    print("| | samples/s | s | % by each worker | loss | kills | samples |\n|---|---|---|---|---|---|---|", flush=True)
    static = run(trial, shards=False)
    print(told("static split", trial, static), flush=True)
    dynamic = run(trial, shards=True)
    print(told("shard service", trial, dynamic))
    costs = [trial.cost_of(number) for number in range(trial.workers)]
    best = max(costs) / trial.workers * sum(1 / cost for cost in costs)
    print(
        f"\n{static.seconds / dynamic.seconds:.2f} times the samples per second; no allocation can give over {best:.2f}"
    )
    return 0 if dynamic.found.exactly_once and dynamic.sums_are_right else 1


if __name__ == "__main__":
    sys.exit(main())
