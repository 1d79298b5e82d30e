"""Findings in words: sentences whose figures can be checked, and what to do about each cause."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from kair_engine.arrays import Bools
from kair_engine.causes import Cause
from kair_engine.localize.anomalies import FEWEST_STEPS, Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.links import SlowLink
from kair_engine.localize.localization import Localization
from kair_engine.results.blame import STEP_BEGIN, BlameResult, RootCause
from kair_engine.results.fix import Fix
from kair_engine.results.localize import JobPattern
from kair_engine.results.triage import Finding, Pattern, Verdict
from kair_engine.results.whatif import FixPrice
from kair_engine.trace.model import Notice
from kair_engine.whatif.fixes import fix_text

_UNDONE: Mapping[Cause, str] = {
    "stage_imbalance": "with even stages",
    "sequence_imbalance": "with microbatches dealt to the ranks by their length",
}
COVERED = 0.25
"""A finding that is worth less than this part of its excess is covered by others that would be as late."""
_CLASS_WORDS = {
    "compute": "{} own compute",
    "input": "fetching {} input",
    "host": "keeping {} device (or thread) idle",
    "communication": "{} sends and receives",
}


def summary(
    verdict: Verdict,
    findings: Sequence[Finding],
    together: FixPrice | None,
    job: JobExcess,
    warnings: Sequence[Notice],
) -> str:
    """The answer in one sentence."""
    scope = f"{_count(len(job.ranks), 'rank')}, {_count(len(job.steps), 'step')}"
    if verdict == "straggler":
        parts = [
            f"{_culprit(f)} ({f.cause.replace('_', ' ')}, {duration(f.time_lost_us_per_step)} a step)" for f in findings
        ]
        both = "" if together is None or together.saved_us <= 0 else f"; together {duration(together.saved_us)} a step"
        return f"straggler: {' and '.join(parts)}{both}"
    if verdict == "no_straggler":
        return f"no straggler: {scope}, no rank differs from its peers beyond chance"
    reasons = {w.code: w.message for w in warnings}
    why = reasons.get("one_rank") or reasons.get("few_steps") or reasons.get("few_peers") or "too few peers for a test"
    return f"inconclusive: {scope}; {why}"


def _culprit(finding: Finding) -> str:
    return "no rank's fault" if finding.pattern == "job_wide" else _ranks(finding.ranks)


def evidence(
    found: Localization,
    blamed: BlameResult,
    anomalies: Sequence[Anomaly],
    *,
    ranks: Sequence[int],
    operator: str | None,
    step_time_ns: float,
) -> tuple[str, ...]:
    """The figures a finding rests on, each with the command that shows it."""
    tested = any(anomaly.operator == operator for anomaly in anomalies)
    return (
        *(_anomaly(found, anomaly, step_time_ns) for anomaly in _telling(found, anomalies)),
        *_waiting(blamed, ranks),
        *_operator(blamed, ranks, operator, named=tested),
    )


def whatif_options(fixes: Iterable[Fix]) -> str:
    """The options of `kair whatif` that ask for fixes: `--fix rank=3+kind=compute`."""
    return " ".join(f"--{'fix' if fix.scale is None else 'scale'} {fix_text(fix)}" for fix in fixes)


def price_evidence(
    finding: Finding, cost: FixPrice, fixes: Sequence[Fix], together: FixPrice | None
) -> tuple[str, ...]:
    """What the replay says; where that is far less than the finding's excess, why."""
    command = f"kair whatif {whatif_options(fixes)}".rstrip()
    before, after = cost.step_time_us + max(cost.saved_us, 0.0), cost.step_time_us + min(cost.saved_us, 0.0)
    what = _UNDONE.get(finding.cause, "without that")
    sentence = f"replayed {what}, a step takes {duration(after)} instead of {duration(before)} [{command}]"
    if finding.pattern == "job_wide" or cost.saved_us >= COVERED * finding.time_lost_us_per_step:
        return (sentence,)
    covered = "that is little: without it, other ranks would have come nearly as late"
    if together is not None and together.saved_us > 0:
        covered += f"; all findings fixed together save {duration(together.saved_us)} [kair whatif {together.fix}]"
    return sentence, covered


def estimate_evidence(finding: Finding, cost: FixPrice) -> tuple[str, ...]:
    """What an excess says about the step. Patterns of the whole job say it themselves."""
    if finding.pattern == "job_wide":
        return ()
    before = cost.step_time_us + cost.saved_us
    return (f"without that the step would take about {duration(cost.step_time_us)} instead of {duration(before)}",)


def link_evidence(links: Sequence[SlowLink], ranks: Sequence[int], step_time_ns: float) -> tuple[str, ...]:
    """The figures that speak against process groups or pipeline edges."""
    sentences = [_slow_link(slow, step_time_ns) for slow in links[:4]]
    if len(links) > 1:
        sentences.append(f"{len(links)} slow links have {_ranks(ranks)} in common [kair localize]")
    elif links[0].link.group is not None:
        sentences.append("all members of a ring see the same duration, so this names the group and no rank in it")
    return tuple(sentences)


def pattern_evidence(pattern: JobPattern, steps: int, step_time_us: float) -> tuple[str, ...]:
    """The figures that speak for a pattern of the whole job."""
    lost, figures = f"{pattern.lost_us / step_time_us:.1%} of the step", pattern.figures
    if pattern.cause == "stage_imbalance":
        slowest, own = max(figures.items(), key=lambda item: item[1])
        mean = sum(figures.values()) / len(figures)
        return (
            f"{slowest} computes {duration(own)} a step, the {len(figures)} stages {duration(mean)} in the mean "
            f"({own / mean:.2f} times that): even stages would save about {lost} [kair localize]",
        )
    if pattern.cause == "sequence_imbalance":
        return (
            "within a rank, forward and backward time vary together over the steps (correlation "
            f"{figures['correlation']:.2f}, median of ranks; forward varies by {figures['variation']:.1%}): batches of "
            "different length [kair localize]",
            f"waiting for the longest batch costs about {lost} [kair localize]",
        )
    word = (
        "garbage collection" if pattern.cause == "garbage_collection" else _CLASS_WORDS[pattern.cause].format("their")
    )
    hit = f"{len(pattern.steps)} of {_count(steps, 'step')}"
    return (
        f"{_count(int(figures['delays']), 'large delay')} on {_count(len(pattern.ranks), 'rank')} in {hit}, through "
        f"{word}, on no rank more often than chance has it [kair localize]",
        f"the longest of each step costs {lost} [kair localize]",
    )


def suggestion(cause: Cause, pattern: Pattern, ranks: Sequence[int], operator: str | None) -> str:
    """What to do about it."""
    who = _ranks(ranks)
    if pattern == "job_wide" and cause in {"compute", "input", "host"}:
        return (
            "No rank is to blame: delays fall on changing ranks. Look for what the hosts share: other jobs, "
            "storage, power and clock limits, daemons."
        )
    if pattern == "group" and cause != "communication":
        return f"{who} are slow together: check what they share (host, power, cooling, switch) and drain it."
    named = f" ({operator[:80]})" if operator else ""
    texts: dict[Cause, str] = {
        "compute": f"Compare clocks, temperature, ECC and other load of {who}'s device with a peer's"
        f"{named}; if it stays slow, drain it and restart elsewhere.",
        "communication": f"Check the link of {who}: error counters, negotiated width and speed, its switch port.",
        "input": f"Look at {who}'s data loading: its shard's size and storage, workers, decoding on the host.",
        "host": f"Look at {who}'s host thread{named}: other processes on its cores, CPU frequency, NUMA placement, "
        "logging or checkpointing, Python work between launches.",
        "garbage_collection": "Collect garbage at the same step on all ranks: gc.disable() and gc.collect() "
        "every few hundred steps.",
        "stage_imbalance": "Move layers from the slow pipeline stage to the others.",
        "sequence_imbalance": "Balance sequence lengths across ranks when batches are built.",
        "unknown": f"Record {who} again with more steps.",
    }
    return texts[cause]


def duration(us: float) -> str:
    """A duration with the unit that suits it."""
    if abs(us) >= 1e6:
        return f"{us / 1e6:.2f} s"
    if abs(us) >= 1e3:
        return f"{us / 1e3:.1f} ms"
    return f"{us:.0f} µs"


def _telling(found: Localization, anomalies: Sequence[Anomaly]) -> Iterator[Anomaly]:
    """Those that say something of their own.

    A rank that is slow in every step has large delays in many, and of a class that is one operator the operator tells.
    """
    for anomaly in anomalies:
        steady = [one for one in anomalies if one.kind != "intermittent" and _covers(one, anomaly)]
        said = {_cost(found, one) for one in steady if one.operator is not None}
        told = bool(steady) if anomaly.kind == "intermittent" else _cost(found, anomaly) in said
        if anomaly.operator is not None or not told:
            yield anomaly


def _covers(one: Anomaly, other: Anomaly) -> bool:
    return one.class_index == other.class_index and set(other.ranks) <= set(one.ranks)


def _anomaly(found: Localization, anomaly: Anomaly, step_time_ns: float) -> str:
    job, members = found.job, list(anomaly.ranks)
    who = _ranks([int(job.ranks[place]) for place in members])
    theirs = "its" if len(members) == 1 else "their"
    word = _CLASS_WORDS[CLASSES[anomaly.class_index]].format(theirs)
    if anomaly.kind == "intermittent":
        k, m = anomaly.events
        few = len(job.steps) < FEWEST_STEPS
        what = f"{m} host pauses between collectives in its role" if few else f"{m} large delays"
        return f"{who}: {k} of the {what} in {_count(len(job.steps), 'step')}, through {word} [kair localize]"
    excess = _excess_ns(found, anomaly)
    cost = f"{duration(excess / 1e3)} a step ({excess / step_time_ns:.1%})"
    if anomaly.operator is not None:
        return f"{who} spends {cost} more in {anomaly.operator} than its role's median [kair localize]"
    than = f"{theirs} role's median"
    if _half(job, members):
        others = np.count_nonzero(_rest(found, anomaly))
        than = f"the other rank of {theirs} role" if others == 1 else f"the other {others} ranks of {theirs} role"
    if len(members) == 1:
        return f"{who} spends {cost} more on {word} than {than} [kair localize]"
    return f"{who} spend {cost} each more on {word} than {than}, in the mean [kair localize]"


def _excess_ns(found: Localization, anomaly: Anomaly) -> float:
    """Per step and rank, over the role's median as `kair localize` shows it.

    Where half of the role is slow, the median lies between the halves: then over the mean of the others.
    """
    if anomaly.operator is not None:
        return anomaly.excess_ns
    mean, members = found.persistence.mean_ns[anomaly.class_index], list(anomaly.ranks)
    over = float(mean[_rest(found, anomaly)].mean()) if _half(found.job, members) else 0.0
    return float(mean[members].mean()) - over


def _cost(found: Localization, anomaly: Anomaly) -> str:
    return duration(_excess_ns(found, anomaly) / 1e3)


def _half(job: JobExcess, members: Sequence[int]) -> bool:
    return 2 * len(members) >= int(np.count_nonzero(job.role == job.role[members[0]]))


def _rest(found: Localization, anomaly: Anomaly) -> Bools:
    """The ranks of the role that are not the anomaly's."""
    role = found.job.role
    return np.asarray((role == role[anomaly.ranks[0]]) & ~np.isin(np.arange(len(role)), anomaly.ranks))


def _slow_link(slow: SlowLink, step_time_ns: float) -> str:
    own, expected = duration(slow.own_ns / 1e3), duration(slow.expected_ns / 1e3)
    group = slow.link.group
    what = f"collectives of process group {group} take" if group is not None else f"{slow.link.name} takes"
    return (
        f"{what} {own} a step, waiting excluded; the {_count(slow.siblings, 'sibling')} {expected} (median): "
        f"{(slow.own_ns - slow.expected_ns) / step_time_ns:.1%} of the step more [kair localize]"
    )


def _waiting(blamed: BlameResult, ranks: Sequence[int]) -> Iterator[str]:
    mine = [row for row in blamed.by_rank if row.rank in ranks]
    if not mine or not blamed.collectives:
        return
    last = sum(row.arrived_last for row in mine)
    waited, share = sum(row.blamed_us for row in mine), sum(row.share for row in mine)
    it = "it" if len(ranks) == 1 else "them"
    yield (
        f"{_ranks(ranks)} came last to {last} of {_count(blamed.collectives, 'collective')}; peers waited "
        f"{waited / 1e6:.3g} rank-seconds for {it}, {share:.0%} of all waiting [{_blame(ranks)}]"
    )


def _operator(blamed: BlameResult, ranks: Sequence[int], operator: str | None, *, named: bool) -> Iterator[str]:
    """What blame found on the way to the operator; `named`: whether the operator was said already."""
    if operator is None:
        return
    causes = [c for c in blamed.root_causes if c.rank in ranks and c.operator is not None][:4]
    if causes:
        listed = "; ".join(
            f"{_place(c, ranks)} ({duration(c.blamed_us)} over {_count(c.synchronisations, 'collective')})"
            for c in causes
        )
        yield f"what made {'it' if len(ranks) == 1 else 'them'} late: {listed} [{_blame(ranks)}]"
    elif not named:
        yield f"the operator behind it: {operator} [kair pinpoint --rank {ranks[0]}]"


def _blame(ranks: Sequence[int]) -> str:
    return f"kair blame --rank {ranks[0]}" if len(ranks) == 1 else "kair blame"


def _place(cause: RootCause, ranks: Sequence[int]) -> str:
    where = "" if len(ranks) == 1 else f" on rank {cause.rank}"
    if cause.operator == STEP_BEGIN:
        return f"late already when the step began{where}"
    return f"idle before {cause.operator}{where}" if cause.is_edge else f"{cause.operator}{where}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed = sorted(ranks)
    if len(listed) > 2 and np.all(np.diff(listed) == 1):
        return f"ranks {listed[0]}–{listed[-1]}"
    return "ranks " + ", ".join(map(str, listed[:8])) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
