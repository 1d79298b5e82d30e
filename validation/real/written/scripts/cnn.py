"""Images: a small residual network, DDP, SGD, a DataLoader, and the accuracy of every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from written.script import Hooks, Script

IMAGES, BATCHES_AHEAD = 512, 200


class Images(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, size: int) -> None:
        source = torch.Generator().manual_seed(1)
        self.images = torch.randint(0, 255, (IMAGES, 3, size, size), generator=source, dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (IMAGES,), generator=source)

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        image = self.images[at].float().div_(255).sub_(0.5)
        return image.flip(-1) if at % 2 else image, self.labels[at]


class Batches:
    """Which images come next; as large as the hooks say."""

    def __init__(self, rank: int, size: int, hooks: Hooks) -> None:
        self.rank, self.size, self.hooks = rank, size, hooks

    def __len__(self) -> int:
        return BATCHES_AHEAD

    def __iter__(self) -> Iterator[list[int]]:
        source = torch.Generator().manual_seed(self.rank)
        for _ in range(BATCHES_AHEAD):
            yield torch.randint(IMAGES, (self.hooks.batch(self.size),), generator=source).tolist()


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.short(x))


class Network(nn.Module):
    def __init__(self, hooks: Hooks, width: int, depth: int) -> None:
        super().__init__()
        self.hooks, self.stem = hooks, nn.Conv2d(3, width, 3, 1, 1)
        widths = [width] * depth + [2 * width] * depth + [4 * width] * depth
        before = [width, *widths[:-1]]
        self.layers = nn.ModuleList(
            Residual(wide, wider, 1 if wide == wider else 2) for wide, wider in zip(before, widths, strict=True)
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = self.hooks.hidden(layer(x))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def build(options: dict[str, Any], rank: int, _ranks: int, hooks: Hooks) -> Script:
    network = Network(hooks, options["width"], options["depth"])
    model = DistributedDataParallel(network, forward_sync_buffers=options["sync_buffers"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

    def joined(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        hooks.fetched()
        images, labels = zip(*items, strict=True)
        return torch.stack(images), torch.stack(labels)

    chosen = Batches(rank, options["batch"], hooks)
    loader = DataLoader(
        Images(options["size"]), batch_sampler=chosen, num_workers=options["workers"], collate_fn=joined
    )
    batches, history = iter(loader), []

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        hooks.between("forward")
        logits = model(images)
        loss = functional.cross_entropy(logits, labels)
        hooks.between("backward")
        loss.backward()
        hooks.between("optimizer")
        optimizer.step()
        history.append((loss.item(), (logits.argmax(1) == labels).float().mean().item()))

    return Script(step, list(model.parameters()))
