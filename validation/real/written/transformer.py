"""A small language model, and what several scripts do with it."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryFile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from written.script import Hooks

WORDS = 256
HEAD = 16


class Attention(nn.Module):
    """Of heads of a fixed size, with a projection each for what they are asked, of and for."""

    def __init__(self, width: int, inner: int | None = None) -> None:
        super().__init__()
        inner = inner or width
        self.query, self.key, self.value = (nn.Linear(width, inner) for _ in range(3))
        self.out = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = (of(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for of in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner or 4 * width), nn.Linear(inner or 4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out


class Block(nn.Module):
    def __init__(self, hooks: Hooks, width: int, heads: int | None = None, inner: int | None = None) -> None:
        super().__init__()
        self.hooks = hooks
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.feed = Attention(width, heads), FeedForward(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return self.hooks.hidden(x + self.feed(self.norms[1](x)))


class Mean(torch.autograd.Function):
    """Over all ranks, both ways."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401 -- as torch calls it
        x = x.clone()
        dist.all_reduce(x)
        return x / dist.get_world_size()

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401 -- as torch calls it
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()


class SynchronisedNorm(nn.Module):
    """Normalises by what all ranks have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean, square = Mean.apply(torch.stack([x.mean((0, 1)), (x * x).mean((0, 1))]))  # type: ignore[no-untyped-call]  # torch has no types for it
        out: Tensor = (x - mean) * torch.rsqrt((square - mean**2).clamp_min(0) + 1e-5) * self.scale
        return out


class Language(nn.Module):
    """Words in, what word is next out."""

    def __init__(
        self, hooks: Hooks, width: int, layers: int, norm: type[nn.Module] = nn.LayerNorm, **of_blocks: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(hooks, width, **of_blocks) for _ in range(layers))
        self.norm, self.head = norm(width), nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def entropy(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def texts(batch: int, length: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words, and those that follow them."""
    drawn = torch.randint(WORDS, (batch, length + 1), generator=source)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def reader(options: dict[str, Any], seed: int, hooks: Hooks) -> Callable[[], tuple[Tensor, Tensor]]:
    """Reads the rank's next batch."""
    source = torch.Generator().manual_seed(seed)

    def read() -> tuple[Tensor, Tensor]:
        with hooks.named("data"):
            hooks.fetched()
            return texts(hooks.batch(options["batch"]), options["length"], source)

    return read


def forward_backward(model: nn.Module, read: Callable[[], tuple[Tensor, Tensor]], hooks: Hooks) -> Tensor:
    """The step's pass each way; its loss."""
    words, target = read()
    hooks.between("forward")
    with hooks.named("forward"):
        loss = entropy(model(words), target)
    hooks.between("backward")
    with hooks.named("backward"):
        loss.backward()
    return loss


def update(optimizer: torch.optim.Optimizer, hooks: Hooks) -> None:
    """By the gradients, which are cleared."""
    hooks.between("optimizer")
    with hooks.named("optimizer"):
        optimizer.step()
    optimizer.zero_grad()


def average(tensors: list[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Over the group, all at once."""
    flat = torch.cat([one.reshape(-1) for one in tensors])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for one, part in zip(tensors, flat.split([one.numel() for one in tensors]), strict=True):
        one.copy_(part.view_as(one))


def gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Those that there are, as this rank holds them."""
    return [getattr(one.grad, "_local_tensor", one.grad) for one in parameters if one.grad is not None]


class Checkpoints:
    """Saved by the first rank, every so many steps; 0 for never."""

    def __init__(self, rank: int, every: int, hooks: Hooks) -> None:
        self.every, self.hooks, self.steps = every if rank == 0 else 0, hooks, 0

    def after(self, **parts: Any) -> None:  # noqa: ANN401 -- models and optimizers
        """A step is over."""
        self.steps += 1
        if self.every and self.steps % self.every == 0:
            with self.hooks.named("checkpoint"), TemporaryFile() as file:
                torch.save({name: part.state_dict() for name, part in parts.items()}, file)
