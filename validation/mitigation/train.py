"""A real job that is resized, killed and started anew: a small model, DDP over gloo, checkpoints, loader workers.

Run by torchrun under `kair mitigate run`; kills.py and ab.py start it. What it trains is written down by the loader.
"""

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kair_mitigate
from kair_mitigate import restarts
from kair_mitigate.audit import AuditLog

SAMPLES = 600


class Rows(torch.utils.data.Dataset):
    """Samples that are drawn from their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        random = torch.Generator().manual_seed(sample)
        inputs = torch.randn(8, generator=random)
        return inputs, inputs[:1].sin(), sample


class Losses:
    """Writes down the loss of all samples of each step, and when the step ended; says which step is the last."""

    def __init__(self, path: Path | None, steps: int) -> None:
        self._file = path.open("w") if path and dist.get_rank() == 0 else None
        self._is_wanted, self._steps, self._step, self._begun = path is not None, steps, 0, time.monotonic()

    @property
    def is_last(self) -> bool:
        """Whether as many steps as wanted are over; never where none are."""
        return self._step == self._steps > 0

    def note(self, loss: torch.Tensor, samples: int) -> bool:
        """Write a line; whether the step was the last."""
        self._step += 1
        if self._is_wanted:
            told = torch.tensor([loss.item() * samples, float(samples)])
            dist.all_reduce(told)
            line = f"{self._step} {time.monotonic() - self._begun:.6f} {(told[0] / told[1]).item():.9g}\n"
            if self._file is not None:
                self._file.write(line)
                self._file.flush()
        return self.is_last


def arguments() -> argparse.Namespace:
    """Return what the job is told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank and step")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step; ranks of more can claim samples")
    parser.add_argument("--every", type=int, default=15, help="steps from one checkpoint to the next")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--per-sample-ms", type=float, default=0.0, help="of pretended computing")
    parser.add_argument("--fixed-ms", type=float, default=0.0, help="of it that no batch changes")
    parser.add_argument("--numbers", type=Path, help="a folder in which the samples' numbers are written down")
    parser.add_argument("--slow", default="", help="RANK:FACTOR: that rank computes so many times as long")
    parser.add_argument("--losses", type=Path, help="a file for the step, its end in s and the loss of all its samples")
    parser.add_argument("--steps", type=int, default=0, help="end after so many; 0: by epochs alone")
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def main() -> None:
    """Train, from the checkpoint if there is one."""
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slow, _, factor = options.slow.partition(":")
    pace = float(factor) if slow and int(slow) == rank else 1.0
    torch.manual_seed(1)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    accumulated = {"accumulate": options.accumulate, "uneven_accumulation": options.accumulate > 1}
    loader = kair_mitigate.loader(Rows(), options.batch, seed=5, num_workers=options.workers, **accumulated)
    if options.checkpoint.exists():
        kept = torch.load(options.checkpoint, weights_only=True)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        loader.load_state_dict(kept["kair"])
    generation, numbers = restarts.generation(), None
    if options.numbers:
        numbers = AuditLog(options.numbers / f"numbers-{generation}-{rank}.jsonl")
    losses = Losses(options.losses, options.steps)
    while loader.epoch < options.epochs and not loader.has_left:
        for inputs, wanted, samples in loader:
            if numbers is not None:
                share = loader.last
                row = {"gen": generation, "rank": rank, "step": share.step, "epoch": share.epoch}
                for sample in samples.tolist() if loader.counted else [0]:
                    end = sample + (loader.counted > 0)  # a rank without samples has two that do not count
                    numbers.write({**row, "begin": sample, "end": end})
            time.sleep(pace * (options.fixed_ms + options.per_sample_ms * len(inputs)) / 1e3)
            with loader.accumulating(model) if options.accumulate > 1 else nullcontext():
                loss = torch.nn.functional.mse_loss(model(inputs), wanted)
                (loss / options.accumulate).backward()
            if not loader.is_last_of_step:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if loader.should_checkpoint() or loader.step % options.every == 0:
                save(options.checkpoint, model, optimizer, loader)
            if losses.note(loss, len(inputs)):
                break
        if losses.is_last:
            break
    save(options.checkpoint, model, optimizer, loader)
    dist.destroy_process_group()


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: object) -> None:
    """By rank 0; the others wait, so that none runs on from a state that is not kept."""
    if dist.get_rank() == 0:
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "kair": loader.state_dict()}
        torch.save(state, beside)
        if not kair_mitigate.commit_checkpoint(beside, path):
            raise SystemExit("this attempt is over")
    dist.barrier()


if __name__ == "__main__":
    main()
