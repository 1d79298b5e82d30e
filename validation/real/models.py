"""The models that takes train: blocks, each from a tensor to a tensor, and the batches they are fed with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from drawing import CHUNKS, Take
from on_gpu.gpu_drawing import GpuTake
from torch import Tensor, nn
from torch.utils.data import Dataset

SEQUENCE = {"cpu": 32, "cuda": 128}
HEADS = 4
IMAGE = {"cpu": 16, "cuda": 32}
ROWS = 8000
WORDS = 16
STEPS_AHEAD = 200


class Attention(nn.Module):
    """A transformer's block: attention and a feed-forward part, both with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.projection_in, self.projection_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.projection_in(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection_out(mixed.transpose(1, 2).flatten(-2))
        out: Tensor = x + self.narrow(torch.relu(self.widen(self.norms[1](x))))
        return out


class Dense(nn.Module):
    """A linear layer with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.relu(self.linear(x))


class Convolution(nn.Module):
    """Two convolutions with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(torch.relu(self.first(x)))
        return out


class Lookup(nn.Module):
    """Rows of a table, averaged, as in a recommendation model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(ROWS, width // 4)
        self.linear = nn.Linear(width // 4, width)

    def forward(self, words: Tensor) -> Tensor:
        return torch.relu(self.linear(self.table(words)))


def make_block(take: Take, index: int) -> nn.Module:
    """Block `index` of the whole model."""
    if take.model == "attention":
        return Attention(take.width)
    if take.model == "convolution":
        return Convolution(take.width)
    if take.model == "embedding" and index == 0:
        return Lookup(take.width)
    return Dense(take.width)


def input_shape(take: Take) -> tuple[int, ...]:
    """The shape of one example."""
    shapes = {
        "attention": (SEQUENCE[take.device], take.width),
        "convolution": (take.width, IMAGE[take.device], IMAGE[take.device]),
        "mlp": (take.width,),
        "embedding": (WORDS,),
    }
    return shapes[take.model]


def hidden_shape(take: Take) -> tuple[int, ...]:
    """The shape of one example between blocks."""
    return (take.width,) if take.model == "embedding" else input_shape(take)


def example_input(take: Take, examples: int) -> Tensor:
    """A batch for the first block."""
    shape = (examples, *input_shape(take))
    if take.model == "embedding":
        return torch.randint(ROWS, shape, device=take.device)
    return torch.randn(shape, device=take.device)


class Examples(Dataset[Tensor]):
    """Batches in CHUNKS pieces, each made by real work; `slowness` and `enlargement` are a fault's."""

    def __init__(self, take: Take, seed: int) -> None:
        self.take, self.seed = take, seed
        # Both change while the loader is in use, so they only serve a loader without workers.
        self.slowness: Callable[[], object] = lambda: None
        self.enlargement: Callable[[], float] = lambda: 1.0
        self.stored: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return CHUNKS * STEPS_AHEAD

    def __getitem__(self, index: int) -> Tensor:
        rng = np.random.default_rng((self.seed, index))
        count = max(1, round(self.take.examples // CHUNKS * self.enlargement()))
        shape = (count, *input_shape(self.take))
        if index % CHUNKS == 0:
            self.slowness()
        if self.take.model == "embedding":
            return torch.from_numpy(rng.integers(ROWS, size=shape))
        if isinstance(self.take, GpuTake):
            return self.bytes_of(rng, shape)
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    def bytes_of(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
        """As images are stored; drawing so many normal numbers would take longer than a GPU trains on them."""
        if self.stored is None:
            self.stored = rng.integers(256, size=4 * math.prod(shape), dtype=np.uint8)
        size = math.prod(shape)
        place = int(rng.integers(max(1, len(self.stored) - size)))
        return torch.from_numpy(np.resize(self.stored[place : place + size], shape))


def on_device(take: GpuTake, batch: Tensor) -> Tensor:
    """The batch on the GPU, as numbers about zero where it is of bytes."""
    moved = batch.to(take.device, non_blocking=True)
    return moved if take.model == "embedding" else moved.float().sub_(128).div_(74)


def joined(chunks: list[Tensor]) -> Tensor:
    """A batch of its pieces."""
    return torch.cat(chunks)
