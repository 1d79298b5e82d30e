"""Two models: a generator beside a discriminator, or a student that learns from a teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from written.script import Hooks, Script

IMAGES, SIZE = 256, 16


class Through(nn.Module):
    """Lets the hooks come in."""

    def __init__(self, hooks: Hooks) -> None:
        super().__init__()
        self.hooks = hooks

    def forward(self, x: Tensor) -> Tensor:
        return self.hooks.hidden(x)


def generator(hooks: Hooks, noise: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(noise, width * 64),
        nn.ReLU(),
        nn.Unflatten(1, (width * 4, 4, 4)),
        nn.ConvTranspose2d(width * 4, width * 2, 4, 2, 1),
        nn.BatchNorm2d(width * 2),
        nn.ReLU(),
        Through(hooks),
        nn.ConvTranspose2d(width * 2, width, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(width, 3, 3, 1, 1),
        nn.Tanh(),
    )


def discriminator(hooks: Hooks, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        Through(hooks),
        nn.Conv2d(width, width * 2, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width * 2, width * 4, 3, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(width * 16, 1),
    )


def classifier(hooks: Hooks, width: int, layers: int) -> nn.Module:
    middle = [part for _ in range(layers) for part in (nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), Through(hooks))]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1),
        nn.ReLU(),
        *middle,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def build(options: dict[str, Any], rank: int, _ranks: int, hooks: Hooks) -> Script:
    source = torch.Generator().manual_seed(rank)
    images = torch.rand(IMAGES, 3, SIZE, SIZE, generator=source)

    def read() -> Tensor:
        chosen = images[torch.randint(IMAGES, (hooks.batch(options["batch"]),), generator=source)]
        hooks.fetched()
        return chosen * 2 - 1

    return (adversaries if options["what"] == "gan" else distilled)(options, hooks, read)


def adversaries(options: dict[str, Any], hooks: Hooks, read: Callable[[], Tensor]) -> Script:
    noise = options["noise"]
    maker = DistributedDataParallel(generator(hooks, noise, options["width"]), broadcast_buffers=False)
    judge = DistributedDataParallel(discriminator(hooks, options["width"]), broadcast_buffers=False)
    of_maker, of_judge = (torch.optim.Adam(one.parameters(), 2e-4, (0.5, 0.999)) for one in (maker, judge))

    def step() -> None:
        real = read()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        hooks.between("forward")
        with hooks.named("D"):
            of_judge.zero_grad()
            fake = maker(torch.randn(len(real), noise))
            said = judge(torch.cat([real, fake.detach()]))
            of_both = functional.binary_cross_entropy_with_logits(said, torch.cat([ones, zeros]))
            hooks.between("backward")
            of_both.backward()
            of_judge.step()
        with hooks.named("G"):
            of_maker.zero_grad()
            judge.requires_grad_(False)
            fooled = functional.binary_cross_entropy_with_logits(judge.module(fake), ones)
            fooled.backward()
            hooks.between("optimizer")
            of_maker.step()
            judge.requires_grad_(True)
        of_both.item(), fooled.item()

    return Script(step, [*maker.parameters(), *judge.parameters()])


def distilled(options: dict[str, Any], hooks: Hooks, read: Callable[[], Tensor]) -> Script:
    teacher = classifier(hooks, 2 * options["width"], 3).eval().requires_grad_(False)
    student = DistributedDataParallel(classifier(hooks, options["width"], 2))
    optimizer = torch.optim.SGD(student.parameters(), 0.1)

    def step() -> None:
        images = read()
        hooks.between("forward")
        with torch.no_grad(), hooks.named("teacher"):
            taught = teacher(images)
        with hooks.named("student"):
            learnt = student(images)
        loss = functional.kl_div(
            functional.log_softmax(learnt / 2, 1), functional.softmax(taught / 2, 1), reduction="batchmean"
        )
        hooks.between("backward")
        optimizer.zero_grad()
        loss.backward()
        hooks.between("optimizer")
        optimizer.step()
        loss.item()

    return Script(step, list(student.parameters()))
