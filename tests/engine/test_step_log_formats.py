"""Lines of steps of every trainer, made by hand: the steps and the times that are read from them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from kair_engine.errors import InputError, UsageError
from kair_engine.steplog.formats import FORMATS
from kair_engine.steplog.reading import pattern_of, read_steps
from kair_engine.steplog.series import series_of

TIMES = [1.0 + 0.01 * (at % 7) for at in range(60)]
Line = Callable[[int, float, float], str]


def _tqdm(rows: Sequence[float]) -> str:
    """Bars as tqdm draws them: an average with memory, in one line."""
    bars, average, elapsed = [], 0.0, 0.0
    for at, one in enumerate(rows, 1):
        average, elapsed = 0.3 * one + 0.7 * average, elapsed + one
        shown = average / (1 - 0.7**at)
        bars.append(f" {at:3d}%|##  | {at}/{len(rows)} [00:{int(elapsed):02d}<01:00, {shown:5.2f}s/it, v_num=0]")
    return "\r".join(bars) + "\n"


LINES: dict[str, Line] = {
    "Megatron-LM": lambda n, s, _: (
        f" [2026-01-01 00:00:00.000000] iteration {n:8d}/  500000 | consumed samples: 256 | elapsed time per iteration "
        f"(ms): {1e3 * s:.1f} | throughput per GPU (TFLOP/s/GPU): 300.0 | number of skipped iterations:   0 |"
    ),
    "nanotron": lambda n, s, _: (
        f"01/01/2026 00:00:00 [INFO|DP=0|PP=3|TP=0|node-1]: iteration: {n} / 100 | consumed_tokens: 1.05M | "
        f"elapsed_time_per_iteration_ms: {s:.3f}K | tokens_per_sec: 1K"
    ),
    "NeMo": lambda n, s, _: (
        f"Training epoch 0, iteration {n}/99 | lr: 1e-05 | global_batch_size: 512 | global_step: {n} | "
        f"reduced_train_loss: 11.03 | train_step_timing in s: {s:.3f}"
    ),
    "NeMo 1": lambda n, s, _: (
        f"Epoch 0: : 5%|# | {n}/100 [00:10<00:33, v_num=1, reduced_train_loss=2.0, train_step_timing in s={s:.3f}]"
    ),
    "verl": lambda n, s, _: (
        f"step:{n} - global_seqlen/min:1.0 - actor/loss:0.1 - timing_s/gen:0.500 - timing_s/step:{s:.4f} - perf/x:1"
    ),
    "xtuner": lambda n, s, _: f"Rank0 Step {n}: data_time: 0.0100 time: {s:.4f} text_tokens: 4096.0 tgs: 100 loss: 1.0",
    "mmengine": lambda n, s, _: (
        f"01/01 00:00:00 - mmengine - INFO - Iter(train) [{n:4d}/1000]  lr: 1e-3  eta: 0:10:00  time: {s:.4f}  "
        "data_time: 0.0100  memory: 100  loss: 1.0"
    ),
    "torchtitan": lambda n, s, t: (
        f"[titan] {np.datetime64(int(1e3 * (1.7e9 + t)), 'ms')!s} - root - INFO - step: {n:2d}  loss: 12.2  memory: "
        f"1.0GiB(1%)  tps: {16_384_000 / s:,.0f}  tflops: 300.0  mfu: 30.0%"
    ),
    "DeepSpeed": lambda n, s, t: (
        f"[{np.datetime64(int(1e3 * (1.7e9 + t)), 'ms')!s}] [INFO] [timer.py] epoch=0/micro_step={n}/global_step={n}, "
        f"RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec={256 / s:.8f}, MemAllocated=1GB"
    ),
    "DeepSpeed (old)": lambda n, _, t: (
        f"[{np.datetime64(int(1e3 * (1.7e9 + t)), 'ms')!s}] [INFO] 0/{n}, SamplesPerSec={256 * n / t:.12f}"
    ),
    "MaxText": lambda n, s, _: f"completed step: {n}, seconds: {s:.3f}, TFLOP/s/device: 100, loss: 2.0",
    "nanoGPT": lambda n, s, _: f"iter {n}: loss 3.1, time {1e3 * s:.2f}ms, mfu 10.00%",
    "nanochat": lambda n, s, _: (
        f"step {n:05d}/21400 (0.05%) | loss: 3.0 | lrm: 1.00 | dt: {1e3 * s:.2f}ms | tok/sec: 1"
    ),
    "llm.c": lambda n, s, _: (
        f"step {n:4d}/18865 | loss 7.6 (+nanz)| norm 1.0 (+nanz)| lr 1e-4 | {1e3 * s:.2f} ms | 30.0% bf16 MFU | 1 tok/s"
    ),
    "OLMo-core": lambda n, s, _: (
        f"2026-01-01 INFO [step={n}/1,000,epoch=1]\n    optim/loss=1.0\n    throughput/device/BPS={1 / s:.8f}"
    ),
    "OLMo": lambda n, s, _: (
        f"2026-01-01 INFO [step={n}/1000]\n    train/loss=1.0\n    throughput/device/batches_per_second={1 / s:.8f}"
    ),
    "Composer": lambda n, s, _: (
        f"[epoch=1][batch={n}/100]:\n\t Train time/batch: {n}\n\t Train throughput/batches_per_sec: {1 / s:.8f}"
    ),
    "fairseq": lambda n, _, t: (
        f"2026 | INFO | train_inner | epoch 001: {n} / 500 loss=5, ups=0.9, num_updates={n}, train_wall=9, wall={t:.3f}"
    ),
    "timm": lambda n, s, _: (
        f"Train: 0 [{n:4d}/1251 (  4%)]  Loss: 6.9 (6.9)  Time: {s:.3f}s,  741.2/s  (9.000s,  1.0/s)  LR: 1e-5  "
        "Data: 0.010 (0.020)"
    ),
    "torchtune": lambda n, s, _: (
        f"Step {n} | loss:1.0 lr:2e-05 tokens_per_second_per_gpu:{1000 / s:.8f} peak_memory_active:1.0"
    ),
    "litgpt": lambda n, s, _: (
        f"Epoch 1 | iter {n} step {n} | loss train: 1.0, val: n/a | iter time: {1e3 * s:.2f} ms (step)"
    ),
    "ColossalAI": lambda n, s, _: f"[01/01/26] INFO step: {n}, loss: 2.0, Step time: {s:.3f}, TFLOPS: 100",
    "phases": lambda n, s, _: f"[Epoch 0, Batch {n}] data: {400 * s:.2f}ms | forward: {600 * s:.2f}ms",
}


def log_of(name: str, rows: Sequence[float]) -> str:
    """Return a log of one trainer with a line for each of these times."""
    ends = np.cumsum(rows)
    return "".join(LINES[name](n, s, t) + "\n" for n, (s, t) in enumerate(zip(rows, ends.tolist(), strict=True), 1))


@pytest.mark.parametrize("name", LINES)
def test_reads_the_steps_of(name: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"Starting\n{log_of(name, TIMES)}done\n")
    lines = read_steps([log])
    assert lines is not None
    assert lines.form.name == name
    (attempt,) = series_of(lines).attempts
    times = dict(zip(attempt.step.tolist(), attempt.seconds.tolist(), strict=True))
    missing = 1 if lines.form.unit == "wall" else 0
    assert len(times) == len(TIMES) - missing
    if lines.form.is_absolute or lines.form.name != "torchtune":
        assert attempt.is_absolute
        assert times == pytest.approx({n: s for n, s in enumerate(TIMES, 1) if n in times}, rel=0.012)
    else:
        assert not attempt.is_absolute
        assert times[8] / times[4] == pytest.approx(TIMES[7] / TIMES[3], rel=0.001)


def test_every_format_is_tried() -> None:
    assert {form.name for form in FORMATS} == {*LINES, "tqdm", "Levanter", "Keras"}


def test_turns_a_bars_average_round(tmp_path: Path) -> None:
    times = [1.0] * 30 + [1.5] * 30
    log = tmp_path / "train.log"
    log.write_text("Loading checkpoint shards: 50%| | 1/2 [00:05<00:05, 5.00s/it]\n" + _tqdm(times))
    lines = read_steps([log])
    assert lines is not None
    (attempt,) = series_of(lines).attempts
    assert attempt.step.tolist() == [*range(1, 61)]
    assert attempt.seconds == pytest.approx(np.array(times), abs=0.05)


def test_reads_bars_of_epochs_as_one_attempt(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{at}/20 ━━━━ 1s {900 + at}ms/step - loss: 1.0\n" for _ in range(3) for at in range(1, 21)))
    lines = read_steps([log])
    assert lines is not None
    assert lines.form.name == "Keras"
    (attempt,) = series_of(lines).attempts
    assert attempt.step.tolist() == [*range(1, 61)]
    assert attempt.seconds[1] == pytest.approx(2 * 0.902 - 0.901)


def test_levanter_by_elapsed_seconds(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f"Progress on:train {at}it/100it rate:1.0s/it remaining:01:00 elapsed:00:{at // 2:02d} postfix:loss=1\n"
            for at in range(0, 100, 10)
        )
    )
    lines = read_steps([log])
    assert lines is not None
    (attempt,) = series_of(lines).attempts
    assert attempt.seconds == pytest.approx(0.5)


def test_restarts_ranks_and_skipped_steps(tmp_path: Path) -> None:
    def line(n: int, s: float, skipped: int = 0) -> str:
        return LINES["Megatron-LM"](n, s, 0).replace("iterations:   0", f"iterations:   {skipped}") + "\n"

    log = tmp_path / "train.log"
    text = "".join(line(n, 1.0, skipped=int(n <= 5)) for n in range(1, 61)) + "".join(
        line(n, 2.0) for n in range(41, 81)
    )
    log.write_text("> using world size: 512, data-parallel-size: 64\n" + text)
    lines = read_steps([log])
    assert lines is not None
    assert lines.world_size == 512
    series = series_of(lines)
    assert [(one.step[0], one.step[-1]) for one in series.attempts] == [(6, 60), (41, 80)]
    assert series.skipped == 5


def test_interleaved_ranks_are_no_restart(tmp_path: Path) -> None:
    rows = sorted(((n, rank) for n in range(1, 41) for rank in range(4)), key=lambda row: row[0] + 0.7 * row[1])
    for prefix in ("[rank{}]: ", ""):
        log = tmp_path / "train.log"
        log.write_text("".join(prefix.format(rank) + LINES["MaxText"](n, 1.0, 0) + "\n" for n, rank in rows))
        lines = read_steps([log])
        assert lines is not None
        series = series_of(lines)
        assert len(series.attempts) == 1
        assert series.processes == 4
        assert set(lines.rank.tolist()) == ({0, 1, 2, 3} if prefix else {-1})
        assert lines.world_size == (4 if prefix else None)


def test_parts_of_a_log_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    parts = [tmp_path / "b.log", tmp_path / "a.log"]
    for at, part in enumerate(parts):
        part.write_text("".join(LINES["MaxText"](n, 1.0, 0) + "\n" for n in range(1 + 30 * at, 31 + 30 * at)))
    lines = read_steps(sorted(parts))
    assert lines is not None
    (attempt,) = series_of(lines).attempts
    assert attempt.step.tolist() == [*range(1, 61)]


def test_own_pattern(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"r{at % 3} it={at // 3} dur={1000 + at}ms\n" for at in range(90)))
    lines = read_steps([log], pattern_of(r"r(?P<rank>\d+) it=(?P<step>\d+) dur=(?P<ms>[\d.]+)ms"))
    assert lines is not None
    assert set(lines.rank.tolist()) == {0, 1, 2}
    (attempt,) = series_of(lines).attempts
    assert attempt.seconds[0] == pytest.approx(1.001)
    with pytest.raises(UsageError, match="named groups"):
        pattern_of(r"(?P<step>\d+)")
    with pytest.raises(UsageError, match="no expression"):
        pattern_of(r"(?P<step>\d+")
    assert read_steps([log], pattern_of(r"(?P<step>\d+) nothing (?P<time>\d+)")) is None


def test_exports_of_dashboards(tmp_path: Path) -> None:
    board = tmp_path / "run-step_time.csv"
    board.write_text("Wall time,Step,Value\n" + "".join(f"{1.7e9 + at},{at},{1.5}\n" for at in range(30)))
    lines = read_steps([board])
    assert lines is not None
    assert lines.form.name == "TensorBoard"
    assert series_of(lines).attempts[0].seconds == pytest.approx(1.5)
    chart = tmp_path / "wandb.csv"
    names = '"Step","a - step_time_ms","a - step_time_ms__MIN","a - step_time_ms__MAX"\n'
    chart.write_text(names + "".join(f'"{at}","1000","900","1{at % 2}00"\n' for at in range(30)))
    lines = read_steps([chart])
    assert lines is not None
    assert series_of(lines).attempts[0].seconds[:2] == pytest.approx([1.0, 1.1])
    chart.write_text('"Step","a - loss","a - loss__MIN","a - loss__MAX"\n"1","2","2","2"\n')
    with pytest.raises(InputError, match="no column of step times"):
        read_steps([chart])


def test_what_prints_no_steps_is_no_log_of_steps(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    for text in ("", "hello\n" * 100, "{'loss': 1.0, 'epoch': 0.1}\n" * 50):
        log.write_text(text)
        assert read_steps([log]) is None
