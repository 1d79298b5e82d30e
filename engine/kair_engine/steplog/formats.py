"""The lines that trainers print of their steps, one row each: an expression, and what its groups mean.

A new format is a row of FORMATS. Expressions run over whole blocks of a log, so none may take longer than its text is
long: gaps are bounded, or stop where the expression could begin anew.
"""

import re
from typing import Final, Literal

from kair_engine.frozen import dataclass

Window = Literal["last", "mean", "memory", "since_start"]
"""What a printed time is of: its step alone; all steps since the line before, as a mean; an average with memory
(tqdm's); all steps since the start, as a mean."""
Unit = Literal["s", "ms", "per_s", "tqdm", "keras", "wall"]
"""What the group `time` is: seconds, milliseconds, something done per second (whose inverse is as long as a step, up to
a factor where `is_absolute` is not set), a rate whose unit follows, a time per step whose unit follows, seconds since
the start."""


OWN: Final = "your pattern"
"""The name of a format that a user states."""


@dataclass(frozen=True)
class StepFormat:
    """One trainer's lines."""

    name: str
    """For people, and for machines."""
    literals: tuple[bytes, ...]
    """All are in a log of this format, of `a|b` one of them: looking for them is quick."""
    expression: "re.Pattern[bytes]"
    """With the groups `step` and `time`, and some of `rank`, `unit`, `total`, `skipped`, `work`, `phases`."""
    unit: Unit = "s"
    window: Window = "last"
    is_absolute: bool = True
    """Whether `time` becomes seconds; else it is as long as a step but for a factor, which stamps of time may give."""
    by_epoch: bool = False
    """Whether steps are numbered from the begin of each epoch."""
    spans_lines: bool = False
    each_rank: bool = False
    """Whether every rank prints its own lines, mostly without its number."""
    side: "re.Pattern[bytes] | None" = None
    """Lines next to a step's with the times of its phases: groups `phases`, or `name` and `most`; and `rank`."""
    note: str = ""
    """What the reader of an answer should know."""

    @property
    def is_own(self) -> bool:
        """Return whether a user stated it."""
        return self.name == OWN


def _row(name: str, literals: str | tuple[str, ...], expression: str, **more: object) -> StepFormat:
    signs = (literals,) if isinstance(literals, str) else literals
    compiled = re.compile(expression.encode(), re.MULTILINE)
    return StepFormat(name, tuple(sign.encode() for sign in signs), compiled, **more)  # type: ignore[arg-type]


_GAP: Final = r"[^\n]{0,600}?"
_NUMBER: Final = r"\d{1,12}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,3})?"
_COUNT: Final = r"\d{1,15}"
_MEGATRON_TIMER: Final = re.compile(
    rb"^[ \t]{1,8}(?P<name>[a-z][\w-]{2,60}) \.{2,80}: \((?P<least>[\d.]{1,16}), (?P<most>[\d.]{1,16})\)", re.MULTILINE
)
_DEEPSPEED_PHASES: Final = re.compile(
    rb"rank=(?P<rank>\d{1,7}) time \(ms\) \| (?P<phases>(?:\w{1,60}: [\d.]{1,16}(?: \| )?){1,40})"
)
PHASE: Final = re.compile(rb"(?P<name>\w[\w /-]{0,60}?): ?(?P<ms>[\d.]{1,16})(?:ms)?")
"""One phase of the group `phases`, in ms."""
PHASE_OF_VERL: Final = re.compile(rb"timing_s/(?P<name>\w{1,60}):(?P<s>[\d.]{1,16})")

FORMATS: Final = (
    _row(
        "Megatron-LM",
        ("elapsed time per iteration (ms): ",),
        rf"iteration +(?P<step>{_COUNT})/ *(?:\d{{1,15}}|infinity) \|{_GAP}elapsed time per iteration \(ms\): "
        rf"(?P<time>{_NUMBER})(?:[^\n]{{0,200}}?global batch size: +(?P<work>\d{{1,9}}))?"
        r"(?:[^\n]{0,600}?number of skipped iterations: +(?P<skipped>\d{1,9}))?",
        unit="ms",
        window="mean",
        side=_MEGATRON_TIMER,
    ),
    _row(
        "nanotron",
        ("elapsed_time_per_iteration_ms: ",),
        rf"iteration: (?P<step>{_COUNT}) / \d{{1,15}} \|{_GAP}elapsed_time_per_iteration_ms: (?P<time>{_NUMBER})"
        r"(?P<unit>K?)",
        unit="ms",
    ),
    _row(
        "NeMo",
        ("train_step_timing in s: ",),
        rf"global_step: (?P<step>{_COUNT})[^\n]{{0,400}}?train_step_timing in s: (?P<time>{_NUMBER})",
    ),
    _row(
        "verl",
        ("timing_s/step:", "step:"),
        rf"(?<![\w/])step:(?P<step>{_COUNT}) - (?P<phases>(?:(?!step:\d{{1,15}} - )[^\n]){{0,40000}}?timing_s/step:"
        rf"(?P<time>{_NUMBER})[^\n]{{0,20000}})",
    ),
    _row(
        "xtuner",
        (" text_tokens: ", " data_time: "),
        rf"(?:Rank(?P<rank>\d{{1,7}}) )?Step (?P<step>{_COUNT})(?:/\d{{1,15}})?:? {_GAP}data_time: (?P<data>{_NUMBER}) "
        rf"{_GAP}\btime: (?P<time>{_NUMBER}) {_GAP}text_tokens: (?P<work>{_NUMBER})",
        each_rank=True,
    ),
    _row(
        "mmengine",
        ("(train)", "data_time: "),
        rf"\(train\) +(?:\[\d{{1,9}}\])?\[ *(?P<step>{_COUNT})/ *(?P<total>{_COUNT})\]{_GAP} time: (?P<time>{_NUMBER}) "
        rf"+data_time: (?P<data>{_NUMBER})",
        window="mean",
        by_epoch=True,
    ),
    _row(
        "torchtitan",
        ("tps: ", "step: "),
        rf"step: +(?P<step>{_COUNT}) {_GAP}tps: (?P<time>[\d,]{{1,18}})",
        unit="per_s",
        window="mean",
        is_absolute=False,
        each_rank=True,
    ),
    _row(
        "DeepSpeed",
        ("CurrSamplesPerSec=",),
        rf"(?:global_step=|\d{{1,9}}/)(?P<step>{_COUNT}), RunningAvgSamplesPerSec=[\d.]{{1,20}}, CurrSamplesPerSec="
        rf"(?P<time>{_NUMBER})",
        unit="per_s",
        is_absolute=False,
        side=_DEEPSPEED_PHASES,
    ),
    _row(
        "DeepSpeed (old)",
        (", SamplesPerSec=",),
        rf"\d{{1,9}}/(?P<step>{_COUNT}), SamplesPerSec=(?P<time>{_NUMBER})",
        unit="per_s",
        window="since_start",
        is_absolute=False,
        side=_DEEPSPEED_PHASES,
    ),
    _row(
        "MaxText",
        ("completed step: ", ", seconds: "),
        rf"completed step: (?P<step>{_COUNT}), seconds: (?P<time>{_NUMBER})",
    ),
    _row(
        "Levanter",
        ("Progress on:train ",),
        r"Progress on:train (?P<step>[\d.]{1,15}k?)it/(?P<total>[\d.]{1,15}k?)it rate:(?P<time>[\d.]{1,15})"
        r"(?P<unit>it/s|s/it) remaining:[^\s]{1,20} elapsed:(?P<elapsed>[\d:]{1,15})",
        unit="tqdm",
        window="memory",
    ),
    _row(
        "nanoGPT",
        ("iter ", ": loss ", ", time "),
        rf"^[^\n]{{0,80}}?\biter (?P<step>{_COUNT}): loss [\d.naif]{{1,20}}, time (?P<time>{_NUMBER})ms",
        unit="ms",
    ),
    _row(
        "nanochat",
        ("step ", "dt: ", "%) |"),
        rf"step (?P<step>{_COUNT})(?:/\d{{1,15}})? \([\d.]{{1,8}}%\) \|{_GAP}dt: (?P<time>{_NUMBER})ms",
        unit="ms",
    ),
    _row(
        "llm.c",
        ("step ", " ms |", "| loss "),
        rf"step +(?P<step>{_COUNT})/\d{{1,15}} \|{_GAP}\| (?P<time>{_NUMBER}) ms \|",
        unit="ms",
    ),
    _row(
        "OLMo-core",
        ("[step=", "throughput/device/BPS="),
        r"\[step=(?P<step>[\d,]{1,18})(?:/[\d,]{1,18})?(?:(?!\[step=)[\s\S]){0,20000}?"
        r"throughput/device/BPS=(?P<time>[\d.,E-]{1,20})",
        unit="per_s",
        spans_lines=True,
    ),
    _row(
        "OLMo",
        ("[step=", "throughput/device/batches_per_second="),
        r"\[step=(?P<step>[\d,]{1,18})(?:/[\d,]{1,18})?(?:(?!\[step=)[\s\S]){0,20000}?"
        r"throughput/device/batches_per_second=(?P<time>[\d.,E-]{1,20})",
        unit="per_s",
        window="mean",
        spans_lines=True,
    ),
    _row(
        "Composer",
        ("batch=", "batches_per_sec: "),
        rf"batch=(?P<step>{_COUNT})/\d{{1,15}}\]:(?:(?!\bbatch=)[\s\S]){{0,20000}}?"
        rf"throughput/(?:device/)?batches_per_sec: (?P<time>{_NUMBER})",
        unit="per_s",
        window="mean",
        spans_lines=True,
    ),
    _row(
        "fairseq",
        ("num_updates=", "wall="),
        rf"num_updates=(?P<step>{_COUNT}){_GAP}[ ,]wall=(?P<time>{_NUMBER})",
        unit="wall",
        window="mean",
    ),
    _row(
        "timm",
        ("Train: ", "Time: ", "Data: "),
        rf"Train: \d{{1,9}} \[ *(?P<step>{_COUNT})/ *(?P<total>{_COUNT}) {_GAP}Time: (?P<time>{_NUMBER})s?,? "
        rf"{_GAP}Data: (?P<data>{_NUMBER})",
        by_epoch=True,
    ),
    _row(
        "torchtune",
        ("Step ", "tokens_per_second_per_gpu:"),
        rf"Step (?P<step>{_COUNT}) \|{_GAP}tokens_per_second_per_gpu:(?P<time>{_NUMBER})",
        unit="per_s",
        is_absolute=False,
        note="times are tokens per second turned round: they are those of steps only if all steps have as many tokens",
    ),
    _row(
        "litgpt",
        ("iter ", "iter time: "),
        rf"(?:iter|Epoch) [^\n|]{{0,60}}?step (?P<step>{_COUNT}) \|{_GAP}iter time: (?P<time>{_NUMBER}) ms",
        unit="ms",
    ),
    _row(
        "ColossalAI",
        ("Step time: ", "tep"),
        rf"[Ss]tep:? *\[?(?P<step>{_COUNT})(?:/\d{{1,15}})?\]?[ ,|]{_GAP}Step time: (?P<time>{_NUMBER})",
    ),
    _row(
        "phases",
        ("[Epoch ", ", Batch ", "ms | "),
        rf"\[Epoch \d{{1,9}}, Batch (?P<step>{_COUNT})\] "
        r"(?P<phases>(?:[\w -]{1,60}: [\d.]{1,16}ms(?: \| ?)?){2,40})",
        unit="ms",
        by_epoch=True,
        each_rank=True,
    ),
    _row(
        "Keras",
        ("/step", "/"),
        rf"(?P<step>{_COUNT})/(?P<total>{_COUNT}) [^\n/]{{0,80}}?(?P<time>{_NUMBER})(?P<unit>us|ms|s)/step",
        unit="keras",
        window="since_start",
        by_epoch=True,
    ),
    _row(
        "NeMo 1",
        ("train_step_timing in s=",),
        rf"(?P<step>{_COUNT})/(?P<total>{_COUNT}) \[[^\n]{{0,400}}?train_step_timing in s=(?P<time>{_NUMBER})",
        by_epoch=True,
    ),
    _row(
        "tqdm",
        ("it/s|s/it",),
        r"(?P<step>\d{1,15})/(?P<total>\d{1,15}|\?) \[(?P<elapsed>[\d:]{1,15})<(?P<left>[\d:?]{1,15}), +"
        r"(?P<time>[\d.]{1,15})(?P<unit>it/s|s/it)",
        unit="tqdm",
        window="memory",
        by_epoch=True,
    ),
)
"""In the order in which they are asked: those that print more than a bar before the bars that run next to them."""
