"""One job by each trainer and each of its ways: resized as ordered, left in the middle of an epoch, resumed elsewhere.

Beside it one process trains the same steps in double precision, by the numbers of the samples that the ranks trained.
"""

import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import kair_mitigate
from kair_mitigate import control, orders, restarts
from kair_mitigate.plans import Plan
from kair_mitigate.training_loader import Loader

SAMPLES, EPOCHS, BATCH, RATE = 500, 2, 16, 0.2
UNEVEN, WITHOUT, LAST = (21, 5, 22), (24, 0, 24), (5, 22, 21)
Row = dict[str, torch.Tensor]


def rows() -> list[Row]:
    """Three tokens each, of which at least one has a label."""
    drawn = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 3, 6, generator=drawn, dtype=torch.float64)
    labels = torch.randint(4, (SAMPLES, 3), generator=drawn)
    labels[:, 1:][torch.rand(SAMPLES, 2, generator=drawn) < 0.5] = -100
    return [{"inputs": inputs[at], "labels": labels[at], "number": torch.tensor(at)} for at in range(SAMPLES)]


def labelled(batch: Row) -> int:
    return int(batch["labels"].ne(-100).sum())


class Network(torch.nn.Module):
    """Its loss is a mean over samples; it remembers what it trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 4)).double()
        self.numbers: list[int] = []

    def losses(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layers(inputs).flatten(0, 1), labels.flatten(), reduction="none")

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, number: torch.Tensor) -> Row:
        self.numbers += number.tolist()
        of_each = self.losses(inputs, labels).view_as(labels).sum(1) / labels.ne(-100).sum(1)
        return {"loss": of_each.mean()}


class Counting(Network):
    """A mean over tokens, or, where their number is told, the sum over that, as language models have it."""

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, number: torch.Tensor, **more: torch.Tensor) -> Row:  # type: ignore[override]
        self.numbers += number.tolist()
        return {"loss": self.losses(inputs, labels).sum() / more.get("num_items_in_batch", labels.ne(-100).sum())}


class Accepting(Network):
    """Is told how many labels there are, and has a mean over samples all the same, as many classifiers do."""

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, number: torch.Tensor, **_: torch.Tensor) -> Row:  # type: ignore[override]
        return super().forward(inputs, labels, number)


class Job:
    """What one way to train did, and what it is ordered meanwhile."""

    def __init__(self, folder: Path, accumulate: int = 1, tokens: Callable[[Row], int] | None = None) -> None:
        self.folder, self.accumulate, self._tokens = folder, accumulate, tokens
        self.steps: dict[int, list[int]] = {}
        self.sizes: dict[int, tuple[int, ...]] = {}
        self.begun: dict[int, int] = {}
        folder.mkdir(exist_ok=True, parents=True)
        os.environ[restarts.RUN_FOLDER] = str(folder)

    def loader(self) -> Loader:
        """Made once the process group is there; ordered sizes are heard from the first steps on."""
        if dist.get_rank() == 0 and not (self.folder / orders.PLAN).exists():
            orders.make_key(self.folder)
            self._order(1, UNEVEN)
        dist.barrier()
        options = {"accumulate": self.accumulate, "tokens": self._tokens}
        return kair_mitigate.loader(rows(), BATCH, seed=3, num_workers=1, **options)

    def note(self, loader: Loader, network: Network) -> None:
        """After each batch: what was trained of its step."""
        share = loader.last
        self.steps[share.step] = self.steps.get(share.step, []) + network.numbers
        self.sizes[share.step] = share.sizes
        network.numbers.clear()
        if loader.rank == 0 and loader.is_last_of_step and share.step in {3, 9}:
            self._order(*((2, WITHOUT) if share.step == 3 else (3, LAST, "leave")), step=share.step + 1)

    def _order(self, version: int, sizes: tuple[int, ...], kind: str = "sizes", step: int = 1) -> None:
        orders.write_plan(self.folder, Plan(version, step, sizes, kind), orders.read_key(self.folder))

    def found(self, network: Network, *, clip: float | None = None, times: float = 1) -> dict[str, Any]:
        """Beside one process: the weights' largest difference, which samples, which sizes."""
        rank, of_all = dist.get_rank(), [None] * dist.get_world_size()
        # What stands in for a rank's missing samples comes after its own.
        dist.all_gather_object(of_all, {step: mine[: self.sizes[step][rank]] for step, mine in self.steps.items()})
        data, alone = rows(), Counting() if isinstance(network, Counting) else Network()
        optimizer = torch.optim.SGD(alone.parameters(), lr=RATE, momentum=0.9)
        trained = list[int]()
        for step in sorted(self.steps):
            numbers = [number for one in of_all for number in one[step]]
            trained += numbers
            batch = {name: torch.stack([data[number][name] for number in numbers]) for name in data[0]}
            (alone(**batch)["loss"] * times).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(alone.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        pairs = zip(network.parameters(), alone.parameters(), strict=True)
        once = list(range(SAMPLES))
        return {
            "away": max((mine - its).abs().max().item() for mine, its in pairs),
            "moved": (alone.layers[0].weight - Network().layers[0].weight).abs().max().item(),
            "once": [sorted(trained[at : at + SAMPLES]) == once for at in range(0, len(trained), SAMPLES)],
            "sizes": sorted(set(self.sizes.values())),
            "left": (self.folder / "left-0").exists(),
        }


def by_accelerate(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from accelerate import Accelerator

    def train(job: Job, is_prepared: bool, clip: float | None) -> Network:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=job.accumulate)
        plain, loader = Network(), job.loader()
        model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=RATE, momentum=0.9))
        if is_prepared:
            loader = accelerator.prepare(loader)
        accelerator.register_for_checkpointing(loader)
        if (job.folder / "saved").exists():
            accelerator.load_state(job.folder / "saved")
        while loader.epoch < EPOCHS and not loader.has_left:
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch)["loss"])
                    if clip and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    optimizer.zero_grad()
                job.note(loader, plain)
                if loader.should_checkpoint():
                    accelerator.save_state(job.folder / "saved")
        return plain

    for name, is_prepared, accumulate, clip in (("loop", False, 1, None), ("prepared", True, 3, 0.1)):
        job = Job(folder / name, accumulate)
        train(job, is_prepared, clip)
        yield name, job.found(train(job, is_prepared, clip), clip=clip)


def by_lightning(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    ranks = int(os.environ["WORLD_SIZE"])  # which a trainer takes away when it is done

    class Module(lightning.LightningModule):
        def __init__(self, job: Job) -> None:
            super().__init__()
            self.job, self.network, self.loader = job, Network(), None

        def train_dataloader(self) -> Loader:
            self.loader = self.job.loader()
            return self.loader

        def training_step(self, batch: Row, _: int) -> torch.Tensor:
            return self.network(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9)

        def on_train_batch_end(self, *_: object) -> None:
            self.job.note(self.loader, self.network)
            if self.loader.should_checkpoint():
                self.trainer.save_checkpoint(self.job.folder / "saved.ckpt")
                self.trainer.should_stop = True

    def train(job: Job, **options: float | bool) -> Network:
        module, saved = Module(job), job.folder / "saved.ckpt"
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=ranks,
            strategy="ddp",
            max_epochs=EPOCHS,
            precision="64-true",
            accumulate_grad_batches=job.accumulate,
            **dict.fromkeys(off, False),
            **options,
        )
        trainer.fit(module, ckpt_path=saved if saved.exists() else None)
        return module.network

    for name, accumulate, options in (
        ("default", 1, {}),
        ("own sampler, accumulated, clipped", 3, {"use_distributed_sampler": False, "gradient_clip_val": 0.1}),
    ):
        job = Job(folder / name, accumulate)
        train(job, **options)
        yield name, job.found(train(job, **options), clip=options.get("gradient_clip_val"))


def by_transformers(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import transformers.trainer

    gc.freeze()  # each Trainer collects garbage, of a million objects that were imported

    class Checkpoints(transformers.TrainerCallback):
        def __init__(self, trainer: "Trainer") -> None:
            self._trainer = trainer

        def on_substep_end(self, *_: object, **__: object) -> None:
            self._trainer.job.note(self._trainer.loader, self._trainer.plain)

        def on_step_end(self, _: object, __: object, control: transformers.TrainerControl, **___: object) -> None:
            self._trainer.job.note(self._trainer.loader, self._trainer.plain)
            if self._trainer.loader.should_checkpoint():
                control.should_save = control.should_training_stop = True

        def on_save(
            self,
            args: transformers.TrainingArguments,
            state: transformers.TrainerState,
            *_: object,
            **__: object,
        ) -> None:
            if state.is_world_process_zero:
                beside = Path(args.output_dir, f"checkpoint-{state.global_step}", "kair.json")
                beside.write_text(json.dumps(self._trainer.loader.state_dict()), encoding="ascii")

    class Trainer(transformers.Trainer):
        def __init__(self, job: Job, network: Network, resumed: Path | None, clip: float, **options: bool) -> None:
            args = transformers.TrainingArguments(
                output_dir=str(job.folder / "saved"),
                use_cpu=True,
                num_train_epochs=EPOCHS,
                gradient_accumulation_steps=job.accumulate,
                max_grad_norm=clip,
                ignore_data_skip=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                logging_strategy="no",
                **options,
            )
            optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9)
            steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
            self.job, self.plain, self._resumed = job, network, resumed
            super().__init__(network, args, optimizers=(optimizer, steady))
            self.add_callback(Checkpoints(self))

        def get_train_dataloader(self) -> Loader:
            self.loader = self.job.loader()
            if self._resumed:
                self.loader.load_state_dict(json.loads((self._resumed / "kair.json").read_text(encoding="ascii")))
            return self.loader

    def train(job: Job, network: Network, clip: float, is_averaged: bool) -> Network:
        resumed = next((job.folder / "saved").glob("checkpoint-*"), None)
        trainer = Trainer(job, network, resumed, clip, average_tokens_across_devices=is_averaged)
        trainer.train(resume_from_checkpoint=resumed and str(resumed))
        return network

    for name, kind, accumulate, tokens, is_averaged, clip, times in (
        ("plain", Network, 3, None, True, 0.1, 1),
        ("averaged", Counting, 1, None, True, 0, 1),
        ("averaged, accumulated", Counting, 3, None, True, 0, 1),
        ("not averaged", Counting, 1, labelled, False, 0, 1),
        ("not averaged, accumulated", Counting, 3, labelled, False, 0, 1),
        # The Trainer itself multiplies such a loss by the number of ranks, also of even batches.
        ("a mean all the same", Accepting, 1, None, True, 0, 3),
    ):
        job = Job(folder / name, accumulate, tokens)
        train(job, kind(), clip, is_averaged)
        yield name, job.found(train(job, kind(), clip, is_averaged), clip=clip, times=times)


def main() -> None:
    torch.set_num_threads(1)
    control.EVERY = 2
    by, folder = sys.argv[1], Path(sys.argv[2])
    ways = {"accelerate": by_accelerate, "lightning": by_lightning, "transformers": by_transformers}[by]
    found = dict(ways(folder))
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
