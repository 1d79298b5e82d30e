"""Gradients of uneven batches by each way to train, beside one process' own of the mean over all samples."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import kair_mitigate
from kair_mitigate.plans import Plan, State

SAMPLES = 48
TABLE = {"even": (16, 16, 16), "uneven": (21, 5, 22), "one": (30, 1, 17), "none": (24, 0, 24)}


def rows(dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(3)
    inputs, wanted = torch.randn(SAMPLES, 8, generator=random), torch.randn(SAMPLES, 1, generator=random)
    return list(zip(inputs.to(dtype), wanted.to(dtype), strict=True))


def network(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(5)
    layers = torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1)
    return torch.nn.Sequential(*layers).to(dtype)


def gradients(model: torch.nn.Module) -> torch.Tensor:
    of = [one.grad for one in model.parameters() if one.grad is not None]
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in of]
    return torch.cat([one.detach().double().flatten() for one in whole])


def reference(tokens: torch.Tensor | None = None) -> torch.Tensor:
    model = network(torch.float64)
    inputs, wanted = (torch.stack(of) for of in zip(*rows(torch.float64), strict=True))
    errors = (model(inputs) - wanted) ** 2
    (errors.mean() if tokens is None else (errors[:, 0] * tokens).sum() / tokens.sum()).backward()
    return gradients(model)


def uneven(sizes: tuple[int, ...], accumulate: int = 1, **options: object) -> "kair_mitigate.training_loader.Loader":
    loader = kair_mitigate.loader(rows(), sum(sizes) // len(sizes), accumulate=accumulate, **options)
    loader.load_state_dict(State(7, 0, 0, 0, Plan(0, 0, sizes)).as_json())
    return loader


def trained(way: str, sizes: tuple[int, ...]) -> torch.Tensor:
    model = network()
    accumulate = 3 if "accumulated" in way else 1
    wrapped = fully_shard(model) if "FSDP" in way else DistributedDataParallel(model)
    loss_of = torch.nn.functional.mse_loss
    # At its first scale, 65536, weights above 1 overflow: a scaler skips such steps and halves it.
    scaler = torch.amp.GradScaler("cpu", init_scale=1024, enabled="fp16" in way)
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(way[-4:])
    for at, (inputs, wanted) in enumerate(uneven(sizes, accumulate, weigh=way != "not weighed")):
        is_last = at == accumulate - 1
        waits = isinstance(wrapped, DistributedDataParallel) and not is_last
        with wrapped.no_sync() if waits else nullcontext():
            with torch.autocast("cpu", narrow) if narrow else nullcontext():
                loss = loss_of(wrapped(inputs), wanted) / accumulate
            scaler.scale(loss).backward()
    scaler.unscale_(torch.optim.SGD(wrapped.parameters()))
    if "clipped" in way:
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 0.1)
    return gradients(wrapped)


def by_tokens(sizes: tuple[int, ...]) -> torch.Tensor:
    """A sample's tokens are its place in the data, from 1 on."""
    counted = [(inputs, wanted, torch.tensor(at + 1.0)) for at, (inputs, wanted) in enumerate(rows())]
    model = DistributedDataParallel(network())
    loader = kair_mitigate.loader(counted, 16, tokens=lambda batch: int(batch[2].sum()))
    loader.load_state_dict(State(7, 0, 0, 0, Plan(0, 0, sizes)).as_json())
    for inputs, wanted, tokens in loader:
        (((model(inputs) - wanted) ** 2)[:, 0] * tokens).sum().div(tokens.sum()).backward()
    return gradients(model)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    exact = reference()
    clipped = exact * (0.1 / exact.norm())
    found = {}
    ways = ("DDP", "FSDP2", "DDP accumulated", "FSDP2 accumulated", "DDP clipped", "DDP bf16", "DDP fp16")
    for way in (*ways, "not weighed"):
        for name, sizes in TABLE.items():
            away = trained(way, sizes) - (clipped if "clipped" in way else exact)
            found[f"{way}, {name}"] = away.abs().max().item()
    tokens = torch.arange(1, SAMPLES + 1, dtype=torch.float64)
    found["tokens, uneven"] = (by_tokens(TABLE["uneven"]) - reference(tokens)).abs().max().item()
    same = trained("DDP", TABLE["even"]).equal(trained("not weighed", TABLE["even"]))
    found["even sizes leave every bit"] = float(same)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
