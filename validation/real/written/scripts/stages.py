"""A pipeline of one rank a stage: by hand with sends that block or not, or by torch's schedules."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from written.script import Hooks, Script

INPUTS, CLASSES = 32, 8
Shape = tuple[int, int, int]
"""Examples, length and width of what stages send."""


class Stage(nn.Module):
    def __init__(self, hooks: Hooks, width: int, blocks: int, first: bool, last: bool) -> None:
        super().__init__()
        self.hooks = hooks
        self.into = nn.Linear(INPUTS, width) if first else None
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, CLASSES) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.into is not None:
            x = self.into(x)
        for block in self.blocks:
            x = self.hooks.hidden(x + block(x))
        return self.head(x) if self.head is not None else x


def entropy(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class ByHand:
    """All microbatches forward, then all backward."""

    def __init__(self, stage: Stage, rank: int, ranks: int, shape: Shape, *, blocking: bool) -> None:
        self.stage, self.rank, self.shape, self.blocking, self.hooks = stage, rank, shape, blocking, stage.hooks
        self.first, self.last = rank == 0, rank == ranks - 1
        self.sent: list[tuple[dist.Work, Tensor]] = []

    def receive(self, source: int) -> Tensor:
        x = torch.empty(self.shape)
        if self.blocking:
            dist.recv(x, source)
        else:
            dist.irecv(x, source).wait()
        return x

    def send(self, x: Tensor, target: int) -> None:
        if self.blocking:
            dist.send(x, target)
        else:
            self.sent.append((dist.isend(x, target), x))

    def step(self, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        kept = []
        with self.hooks.named("pipeline_forward"):
            for given, target in zip(inputs, targets, strict=True):
                x = given if self.first else self.receive(self.rank - 1).requires_grad_()
                y = self.stage(x)
                if self.last:
                    y = entropy(y, target) / len(inputs)
                else:
                    self.send(y.detach(), self.rank + 1)
                kept.append((x, y))
        self.hooks.between("backward")
        with self.hooks.named("pipeline_backward"):
            for x, y in kept:
                y.backward(None if self.last else self.receive(self.rank + 1))
                if not self.first:
                    self.send(x.grad, self.rank - 1)
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()
        return sum((y.detach() for _, y in kept), torch.zeros(())) if self.last else torch.zeros(())


class Scheduled:
    """By torch's own schedules."""

    def __init__(self, stage: Stage, rank: int, ranks: int, *, way: str, microbatches: int) -> None:
        whole = PipelineStage(stage, rank, ranks, torch.device("cpu"))
        schedule = Schedule1F1B if way == "1f1b" else ScheduleGPipe
        self.schedule = schedule(whole, microbatches, loss_fn=entropy)
        self.first, self.last = rank == 0, rank == ranks - 1

    def step(self, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        losses: list[Tensor] = []
        if self.first:
            self.schedule.step(torch.cat(inputs))
        elif self.last:
            self.schedule.step(target=torch.cat(targets), losses=losses)
        else:
            self.schedule.step()
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    count, examples, length = options["microbatches"], options["batch"], options["length"]
    shape, way = (examples, length, options["width"]), options["way"]
    stage = Stage(hooks, options["width"], options["blocks"], rank == 0, rank == ranks - 1)
    if way in ("blocking", "asynchronous"):
        pipeline: ByHand | Scheduled = ByHand(stage, rank, ranks, shape, blocking=way == "blocking")
    else:
        pipeline = Scheduled(stage, rank, ranks, way=way, microbatches=count)
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
    source = torch.Generator().manual_seed(7)

    def step() -> None:
        hooks.fetched()
        inputs = torch.randn(count * examples, length, INPUTS, generator=source).chunk(count)
        targets = torch.randint(CLASSES, (count * examples, length), generator=source).chunk(count)
        hooks.between("forward")
        loss = pipeline.step(inputs, targets)
        hooks.between("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        if options["tells_loss"]:
            dist.broadcast(loss, ranks - 1)

    return Script(step, list(stage.parameters()))
