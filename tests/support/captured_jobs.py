"""Small training jobs, each in a forked process of its own, that leave what they saw as JSON in a folder.

    python captured_jobs.py FOLDER JOB…

PyTorch takes three seconds of CPU to load: the processes share one that has it.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.utils
import torch.distributed as dist
import torch.profiler
import torch.utils.data
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2
STEPS = 24
WINDOW = (4, 16)
"""First step and number of steps of the window that is sampled."""
SLOW_RANK = 1
Seen = dict[str, Any]
Losses = list[str]


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def batches(count: int = STEPS, workers: int = 0) -> torch.utils.data.DataLoader[Any]:
    torch.manual_seed(7)
    samples = torch.utils.data.TensorDataset(torch.randn(count * 8, 16), torch.randn(count * 8, 4))
    return torch.utils.data.DataLoader(samples, 8, num_workers=workers)


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = ((model(batch[0]) - batch[1]) ** 2).mean()
    return loss


def start() -> None:
    import kair_capture as kair

    kair.start(job="test")


def ask(first: int, steps: int, rank: int = 0, options: int = 0) -> None:
    """What an agent does."""
    from kair_capture.job.windows import ControlWords, Window

    words = ControlWords(Path(os.environ["KAIR_RUN_DIR"]) / f"rank-{rank}.control")
    words.ask(Window(first, steps, options))
    words.close()


class Slow(nn.Module):
    """A layer that keeps its host waiting on one rank, as emulated devices in the samples do: no load changes that."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.seconds = 0.08 if rank == SLOW_RANK else 0.0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return values


def data_parallel(rank: int, begin: Callable[[], None], between: Callable[[int], None]) -> Seen:
    """Losses to the last bit, on two ranks with the second one slow, its batches from two worker processes."""
    begin()
    parallel = nn.parallel.DistributedDataParallel(nn.Sequential(Slow(rank), model()))
    optimizer = torch.optim.AdamW(parallel.parameters(), 1e-2)
    losses = []
    for step, batch in enumerate(batches(workers=2)):
        loss = loss_of(parallel, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        between(step)
    return {"losses": losses}


def plain(rank: int, folder: Path) -> Seen:
    first, steps = WINDOW
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=first - 1, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(folder / "plain" / f"rank{rank}.json")),
    )
    with profiler:
        return data_parallel(rank, lambda: None, lambda _: profiler.step())


def captured(rank: int, _: Path) -> Seen:
    from torch.autograd.profiler import profile

    from kair_capture.job.session import current

    seen: Seen = {"started": False, "objects_made": False}

    def begin() -> None:
        start()
        ask(*WINDOW, rank=rank)
        seen["started"] = current.session is not None

    def parse(*_: object, **__: object) -> list[object]:
        """Instead of what makes an object of Python's of every event."""
        seen["objects_made"] = True
        return []

    original, profile._parse_kineto_results = profile._parse_kineto_results, parse
    try:
        return data_parallel(rank, begin, lambda _: None) | seen
    finally:
        profile._parse_kineto_results = original


def sharded(rank: int, _: Path) -> Seen:
    """FSDP2, whose collectives wait in Python."""
    start()
    whole = model()
    for layer in whole.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=init_device_mesh("cpu", (RANKS,)))
    fully_shard(whole, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.SGD(whole.parameters(), 1e-2)
    for batch in batches(4):
        loss_of(whole, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"rank": rank}


def pipelined(rank: int, _: Path) -> Seen:
    """Two stages that send activations and their gradients to each other."""
    start()
    stage = model() if rank == 0 else nn.Linear(4, 4)
    optimizer = torch.optim.SGD(stage.parameters(), 1e-2)
    for batch in batches(11):
        if rank == 0:
            passed, gradient = stage(batch[0]), torch.zeros(8, 4)
            dist.send(passed.detach(), 1)
            dist.recv(gradient, 1)
            passed.backward(gradient)
        else:
            received = torch.zeros(8, 4)
            dist.recv(received, 0)
            received.requires_grad_()
            loss_of(stage, [received, batch[1]]).backward()
            dist.send(received.grad, 0)
        optimizer.step()
        optimizer.zero_grad()
    return {}


def accumulation(_: int, __: Path) -> Seen:
    start()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    for number, batch in enumerate(batches(12)):
        (loss_of(net, batch) / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return {}


def kept_model(_: int, folder: Path) -> Seen:
    """A model that is trained, then saved whole, copied, trained as the copy, and scripted."""
    start()
    net = model()
    for _epoch in range(2):
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        for batch in batches(3):
            loss_of(net, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.save(net, folder / "kept_model.pt")
        net = copy.deepcopy(net)
    batch = next(iter(batches(1)))[0]
    expected = net(batch)
    replica = net._replicate_for_data_parallel()
    replica._modules = {name: nn.Identity() for name in net._modules}
    return {
        "scripted": torch.equal(torch.jit.script(net)(batch), expected),
        "replica": torch.equal(replica(batch), batch),
    }


def several_optimizers(_: int, __: Path) -> Seen:
    start()
    one, two = model(), model()
    first, second = torch.optim.SGD(one.parameters(), 1e-2), torch.optim.Adam(two.parameters(), 1e-2)
    for batch in batches(8):
        for net, optimizer in ((one, first), (two, second)):
            loss_of(net, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {}


def skipped_steps(_: int, __: Path) -> Seen:
    start()
    net, scaler = model(), torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    for number, batch in enumerate(batches(6)):
        optimizer.zero_grad()
        loss = loss_of(net, batch) * (float("inf") if number == 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {}


def compiled(_: int, __: Path) -> Seen:
    """How many graphs PyTorch compiled, with the hooks and without."""
    graphs = []
    for captures in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        if captures:
            start()
        net = torch.compile(model(), backend="eager")
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        losses = []
        for batch in batches(5):
            loss = loss_of(net, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
        stats = torch._dynamo.utils.counters
        graphs.append((stats["stats"]["unique_graphs"], sum(stats["graph_break"].values()), losses))
    return {"without": graphs[0], "with": graphs[1]}


def loads_ahead(_: int, __: Path) -> Seen:
    """Batches come from a thread that is ahead of the loop."""
    gc.unfreeze()  # in the time in which models are looked for, that thread gets ahead
    start()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    ready: queue.Queue[list[torch.Tensor] | None] = queue.Queue(2)

    def load() -> None:
        for batch in batches(10):
            ready.put(batch)
        ready.put(None)

    thread = threading.Thread(target=load)
    thread.start()
    while (batch := ready.get()) is not None:
        loss_of(net, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    thread.join()
    return {}


def failing_hook(_: int, folder: Path) -> Seen:
    """The recorder fails in the middle of training."""
    from kair_capture.job.session import current

    start()
    assert current.session is not None

    def fail(*_: object) -> None:
        raise RuntimeError("the ring is gone")

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    with (folder / "failing_hook.stderr").open("w") as stderr:
        sys.stderr = stderr
        for number, batch in enumerate(batches(6)):
            if number == 3:
                current.session.recorder.scope = fail  # type: ignore[method-assign]
            loss_of(net, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        sys.stderr = sys.__stderr__
    return {"session": current.session is not None}


def own_profiler(_: int, __: Path) -> Seen:
    """The job profiles itself while a window is open, which gives way; and again once a later one is over."""
    import kair_capture as kair

    start()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    own = []
    for number, batch in enumerate(batches(14)):
        if number == 0:
            ask(2, 4)
        if number == 8:
            ask(10, 1, options=5)  # stacks and shapes; with memory PyTorch writes a line to stderr
        profiler = None
        if number in (3, 12):
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            profiler.start()
        with kair.scope("augment"), kair.scope("inner"):
            pass
        loss_of(net, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if profiler is not None:
            profiler.stop()
            own.append(len(profiler.events()))
    return {"own": min(own)}


def explicit(_: int, __: Path) -> Seen:
    """A loop that capture could not know: no optimizer, no loader, steps told by the script."""
    import kair_capture as kair

    start()
    for _number in range(5):
        with kair.scope("forward"):
            pass
        thread = threading.Thread(target=lambda: kair.scope("beside").__enter__().__exit__(None, None, None))
        thread.start()
        thread.join()
        kair.step()
    kair.stop()
    with kair.scope("after"):
        kair.step()
    return {}


def no_place(_: int, folder: Path) -> Seen:
    """The run folder cannot be made."""
    os.environ["KAIR_RUN_DIR"] = str(folder / "no_place.json.file" / "x")
    (folder / "no_place.json.file").write_text("")
    with (folder / "no_place.stderr").open("w") as stderr:
        sys.stderr = stderr
        start()
        sys.stderr = sys.__stderr__
    return accumulation(0, folder)


def frozen_heap(_: int, __: Path) -> Seen:
    """A model that the collector no longer tells of, as after the set-up of many loops."""
    from kair_capture.job.torch_scopes import ScopeFinder, find_roots

    ScopeFinder().install()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(net.parameters())
    gc.freeze()
    found = find_roots(optimizer)
    return {"found": found.callable == found.data_parallel == (net,)}


class HostsEvent:
    """Of a device that keeps up with its host."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.monotonic()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: HostsEvent) -> float:
        return 1e3 * (end.at - self.at)


def on_a_device(_: int, __: Path) -> Seen:
    """Each step waits for other ranks, between its last gradient and the end of backward."""
    from kair_capture.job import torch_scopes

    torch_scopes.is_on_gpu = lambda _: True
    torch.cuda.Event = HostsEvent  # type: ignore[assignment,misc]
    torch.cuda.is_current_stream_capturing = lambda: False
    start()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))

    def wait(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        time.sleep(0.02)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    net.register_comm_hook(None, lambda _, bucket: wait(bucket))
    optimizer = torch.optim.SGD(net.parameters())
    for _number in range(12):
        net(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {}


JOBS: dict[str, tuple[Callable[[int, Path], Seen], int]] = {
    "plain": (plain, RANKS),
    "captured": (captured, RANKS),
    "sharded": (sharded, RANKS),
    "pipelined": (pipelined, RANKS),
    **{
        job.__name__: (job, 1)
        for job in (
            accumulation,
            kept_model,
            several_optimizers,
            skipped_steps,
            loads_ahead,
            compiled,
            failing_hook,
            own_profiler,
            explicit,
            no_place,
            frozen_heap,
            on_a_device,
        )
    },
}


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # Each process looks through all objects for models: through PyTorch's own it would take longer than its training.
    gc.freeze()
    failed = [name for name in names if not run(folder, name)]
    sys.exit(f"failed: {failed}" if failed else 0)


def run(folder: Path, name: str) -> bool:
    """Runs a job's ranks to their end."""
    job, ranks = JOBS[name]
    (folder / name).mkdir()
    processes = list(forked(folder, name, job, ranks))
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    return not any(statuses)


def forked(folder: Path, name: str, job: Callable[[int, Path], Seen], ranks: int) -> Iterator[int]:
    for rank in range(ranks):
        process = os.fork()
        if process:
            yield process
            continue
        status = 1
        try:
            os.environ |= {"KAIR_RUN_DIR": str(folder / name / "run"), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ["TORCH_FR_BUFFER_SIZE"] = "512"
            if ranks > 1:
                meeting = f"file://{folder / name}/ranks"
                dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
            seen = job(rank, folder)
            (folder / f"{name}-{rank}.json").write_text(json.dumps(seen))
            import kair_capture

            kair_capture.stop()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)


if __name__ == "__main__":
    main()
