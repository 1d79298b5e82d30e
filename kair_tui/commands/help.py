"""`kair help`: what a word of the answers means, or what a command does.

The words of the field as Kair's answers use them; docs/glossary.md has the same entries.
"""

from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Final

from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_tui.cli.options import Argument
from kair_tui.cli.registry import COMMANDS, find


@dataclass(frozen=True)
class Word:
    """An entry: what the word means, in one or two sentences."""

    name: str
    text: str
    page: str
    """The page and section that explains it, below docs/."""
    also: tuple[str, ...] = ()
    """What else it is called."""


def entry_of(typed: str) -> Word | None:
    """The entry of a word as somebody types it: in any case, in the plural, with hyphens or blanks."""
    plain = _plain(typed)
    return _ENTRIES.get(plain) or _ENTRIES.get(plain.removesuffix("s")) or _ENTRIES.get(plain.removesuffix("es"))


def _plain(word: str) -> str:
    return " ".join(word.lower().replace("-", " ").replace("_", " ").split())


WORDS: Final = (
    Word(
        "absorbed",
        "A delay of a host or its input is absorbed where it costs nothing, since the host is far enough ahead of its "
        "device. It is listed, and accuses nobody.",
        "methods/run-ahead.md#who-is-accused",
    ),
    Word(
        "account",
        "A step's time on each rank as rows that add up to it exactly: what it went to, and for whom the rank waited."
        " The bar of a step and the open items are sums of its rows.",
        "methods/account.md",
    ),
    Word(
        "allocator",
        "What hands out device memory. A step that frees and allocates it anew (`cudaFree`, `cudaMalloc`) empties the"
        " device at each call.",
        "methods/triage.md#findings",
        ("memory allocator",),
    ),
    Word(
        "bubble",
        "What a rank waits in the ideal job too, since the stages of a pipeline work one after another. Nobody is at "
        "fault for it.",
        "methods/views.md#the-bar-of-a-step",
        ("pipeline bubble",),
    ),
    Word(
        "checkpoint",
        "The model's state, saved to storage every so many steps. A rank that stands still for it at equal distances "
        "has periodic pauses (`periodic_pause`).",
        "methods/triage.md#findings",
        ("periodic pause",),
    ),
    Word(
        "collective",
        "An operation that the ranks of a process group do together, such as an all-reduce: nobody can finish before "
        "the last one has come. Whoever waits in it has a long one, the culprit the shortest.",
        "methods/collectives-and-clocks.md#matching",
        ("all-reduce",),
    ),
    Word(
        "compilation",
        "Code that is compiled within a step: often on one rank that meets a new shape, while the others wait.",
        "methods/triage.md#findings",
        ("recompilation",),
    ),
    Word(
        "culprit",
        "A rank, host or link that is slow by its own doing and makes others wait. Who waits for it is a victim, and "
        "looks busy in its collectives.",
        "methods/triage.md#checks",
        ("victim",),
    ),
    Word(
        "device model",
        "Which kind of GPU a rank has, such as A100 or H100. Where all accused ranks have a slower model than their "
        "peers, nothing is broken.",
        "methods/triage.md#what-is-slower-within-a-rank-and-what-is-not",
    ),
    Word(
        "event",
        "A large delay in a few steps, such as an evaluation on one rank. It accuses nobody, and is listed as open "
        "with its steps, rank and operator.",
        "methods/localize.md#moment",
        ("moment",),
    ),
    Word(
        "excess",
        "How much more self time a rank spends in a step than the median of its role. Tests ask whether that is more "
        "than chance.",
        "methods/localize.md#excess",
    ),
    Word(
        "exposed communication",
        "Communication that no computing hides: while it goes on the device does nothing else. Overlapping it with "
        "the backward pass, or a faster network, makes the step shorter.",
        "methods/views.md#one-ranks-step",
    ),
    Word(
        "finding",
        "One thing that slows the job, with its cause, its evidence and its price. It names the ranks to blame, or "
        "none where it is job-wide.",
        "methods/triage.md#findings",
    ),
    Word(
        "host link",
        "The way between a host and its device, mostly PCIe. Where copies alone are slower than on peers, its width "
        "or generation is less.",
        "methods/triage.md#what-is-slower-within-a-rank-and-what-is-not",
        ("PCIe",),
    ),
    Word(
        "inconclusive",
        "The verdict where the recording cannot tell: a large part of the step is open, ranks could not be "
        "compared, or there are too few steps. The first line says what is missing.",
        "methods/triage.md#verdict",
    ),
    Word(
        "intermittent",
        "Slow in some steps only: large delays that come now and then, more often on one rank than the others' rate "
        "explains.",
        "methods/localize.md#intermittent-slow-in-some-steps",
    ),
    Word(
        "job-wide",
        "What slows the job and is no rank's fault: busy cores, slow input, uneven batches, stages or positions. Such "
        "a finding accuses nobody, and says where it shows.",
        "methods/triage.md#what-all-ranks-spend-alike",
    ),
    Word(
        "joint price",
        "What a step saves if all accused are fixed together. Ranks that are as late hide one another, so each one's "
        "part of it is a range.",
        "methods/triage.md#price",
    ),
    Word(
        "launch queue",
        "Where what a host has launched waits for the device. A host that meets a full queue waits for a place in it, "
        "which is no work.",
        "methods/run-ahead.md#the-launch-queue",
    ),
    Word(
        "lead",
        "How far a host is ahead of its device: the shortest time from a launch to the begin of what it launched. So "
        "late the host can be once, and nobody waits.",
        "methods/run-ahead.md#who-is-accused",
        ("run ahead", "ahead"),
    ),
    Word(
        "link",
        "What ranks communicate by: a process group, or the edge of a pipeline from a sender to a receiver. One that "
        "is slower than its siblings, or than before, is named, and no rank with it.",
        "methods/localize.md#links",
    ),
    Word(
        "microbatch",
        "A part of a step's batch that goes through the stages of a pipeline by itself, so that several stages work "
        "at the same time.",
        "methods/whatif.md#model-what-waits-for-what",
    ),
    Word(
        "open item",
        "A part of the step that no finding explains: how much, on whom, in which steps, and what would settle it. "
        "From 5 % of the step on it keeps the verdict from being `no_straggler`.",
        "methods/triage.md#what-is-open",
        ("open", "budget"),
    ),
    Word(
        "p-value",
        "How often chance alone would show as much in a healthy job, corrected for everything that one triage tries. "
        "Triage accuses below 1 %.",
        "methods/localize.md#where-p-values-are-corrected",
        ("p",),
    ),
    Word(
        "persistent",
        "Slow in most of the recorded steps, and steadily so: no single long step makes it up. Its opposite is "
        "intermittent.",
        "methods/localize.md#persistent-slow-in-every-step",
        ("steady",),
    ),
    Word(
        "phase",
        "Forward, backward, optimizer or input, within a step. A stage is something else.",
        "methods/views.md#one-ranks-step",
    ),
    Word(
        "position",
        "The number of a rank within its process group, or the model, host or block of ranks that it belongs to. "
        "Ranks of one position can differ from those of another in every step.",
        "methods/localize.md#place",
        ("place",),
    ),
    Word(
        "preempted",
        "A thread is preempted when the kernel takes its core away though it has more to do. It stands still in the "
        "middle of an operation; where that costs, the cause is `contention`.",
        "methods/whatif-operators.md#stops-of-threads",
        ("contention", "stop"),
    ),
    Word(
        "process group",
        "The ranks that take part in the same collectives: all of the job, or those of one tensor-parallel or "
        "data-parallel group.",
        "methods/collectives-and-clocks.md#process-groups-and-peers-that-gloo-does-not-name",
        ("communicator",),
    ),
    Word(
        "quota",
        "How much CPU time a container or control group may use. Who has used it up is throttled: all its threads "
        "stand still until the next period begins.",
        "methods/triage.md#ranks-that-are-held-back",
        ("throttled",),
    ),
    Word(
        "rank",
        "One process of the job, usually with one GPU, and its number from 0.",
        "methods/README.md#words",
    ),
    Word(
        "replay",
        "The recorded job played again with other durations, everything still waiting for what it waited for. What "
        "that saves is the price of a finding: a delay that others hide saves nothing.",
        "methods/whatif.md#replay",
        ("price",),
    ),
    Word(
        "role",
        "The ranks that run the same program, such as one stage of a pipeline. A rank is compared with its role only.",
        "methods/localize.md#roles",
        ("peer",),
    ),
    Word(
        "root cause",
        "Where the walk back from waiting ends: the rank, and the operation or idle time, in which the lateness came "
        "about.",
        "methods/blame.md#the-walk",
        ("blame",),
    ),
    Word(
        "run queue",
        "Where threads stand that could run and have no core. Capture asks the kernel how long they do in each "
        "sampled step, which no trace shows.",
        "methods/whatif-operators.md#what-was-measured",
    ),
    Word(
        "score",
        "How many standard errors a rank's excess lies above its peers'. It ranks, and accuses nobody.",
        "methods/README.md#figures-that-every-answer-has",
    ),
    Word(
        "self time",
        "What an operation spends that is its own doing: without what is nested in it, and without waiting for other "
        "ranks.",
        "figures.md#who-is-slow",
    ),
    Word(
        "sensitivity",
        "The smallest slowdown of each kind that triage would find in this recording with 95 % probability. A smaller "
        "one may be there though the verdict is `no_straggler`.",
        "methods/sensitivity.md",
    ),
    Word(
        "sequence imbalance",
        "Batches of uneven length: a rank that has the longer sequences computes for longer in that step, and others "
        "wait. It falls on changing ranks and is job-wide.",
        "methods/localize.md#job-wide-patterns",
        ("uneven batches", "uneven sequences"),
    ),
    Word(
        "slowdown S",
        "The step time over the step time without any straggler, both replayed: 1.0 is none, 1.1 a step a tenth "
        "longer. The slowdown of one finding is against the job without that finding alone.",
        "methods/whatif.md#s-and-who-costs-what",
        ("S", "slowdown"),
    ),
    Word(
        "stage",
        "A part of the model in a pipeline, held by some of the ranks. What it computes goes on to the next one.",
        "methods/whatif.md#model-what-waits-for-what",
        ("pipeline stage",),
    ),
    Word(
        "step",
        "One iteration of the training loop. Its time is the median rank's, in the mean over the steps; where hosts "
        "run ahead it is the device's.",
        "figures.md#time",
        ("step time",),
    ),
    Word(
        "straggler",
        "A rank, host or link that is slower than its peers beyond chance, and for which the others wait. The verdict "
        "has that name where one is accused.",
        "methods/triage.md#verdict",
    ),
    Word(
        "wait imposed",
        "What others waited for root causes on this rank, per step and summed over those who waited.",
        "figures.md#waiting",
    ),
    Word(
        "waiting",
        "What ranks spend in collectives before the last member comes, summed over ranks (rank-seconds). It needs no "
        "common clock: members leave together, so who was in it shortest came last.",
        "figures.md#waiting",
        ("wait",),
    ),
)
"""By name."""

_ENTRIES: Final = {_plain(name): word for word in WORDS for name in (word.name, *word.also)}


ALL: Final = "words"
_WIDEST: Final = 100
"""Characters in a line of text that can still be read easily."""


def names(beginning: str = "") -> list[str]:
    """What can be asked about and begins so."""
    known = (ALL, *(word.name for word in WORDS), *(entry.name for entry in COMMANDS))
    return list(dict.fromkeys(name for name in known if name.startswith(beginning)))


def run(
    word: Annotated[
        Sequence[str],
        Argument("A word of the answers (straggler, launch queue), words for all of them, or a command.", offers=names),
    ] = (),
) -> str:
    """What the word means, or what the command of that name does; without one, what there is. Raises UsageError."""
    from kair_tui.cli.app import help_text, program

    if not word:
        return program().get_help(program().make_context("kair", [], resilient_parsing=True)) + "\n"
    asked = " ".join(word)
    if asked == ALL:
        return _list(WORDS)
    known = entry_of(asked)
    command = find(asked.removeprefix("kair "))
    if known is not None:
        return _entry(known) + (f"  The command of that name: kair {command.name} --help\n" if command else "")
    if command is not None:
        return help_text(command) + "\n"
    raise UsageError(f"no word {asked!r} in the glossary", _way_out(asked))


def _entry(word: Word) -> str:
    title = f"{word.name} (also: {', '.join(word.also)})" if word.also else word.name
    width = min(_WIDEST, get_terminal_size().columns)
    text = fill(word.text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"{title}\n{text}\n  More: docs/{word.page}\n"


def _list(words: Iterable[Word]) -> str:
    return "".join(f"{_entry(word)}\n" for word in words) + "kair help WORD shows one of them.\n"


def _way_out(asked: str) -> str:
    from difflib import get_close_matches

    known = {name.lower(): name for word in WORDS for name in (word.name, *word.also)}
    known |= {entry.name: entry.name for entry in COMMANDS}
    near = get_close_matches(asked.lower(), known, n=1)
    return f"did you mean kair help {known[near[0]]}?" if near else "kair help words lists all"
