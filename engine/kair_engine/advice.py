"""Findings in words: sentences whose figures can be checked, and what to do about each cause."""

from collections.abc import Iterator, Sequence

import numpy as np

from kair_engine.anomalies import FEWEST_STEPS, Anomaly
from kair_engine.excess import CLASSES, JobExcess
from kair_engine.links import SlowLink
from kair_engine.model import Notice
from kair_engine.results import STEP_BEGIN, BlameResult, Cause, Finding, JobPattern, Pattern, RootCause, Verdict

_CLASS_WORDS = {
    "compute": "its own compute",
    "input": "fetching its input",
    "host": "keeping its device (or thread) idle",
    "communication": "its sends and receives",
}


def summary(verdict: Verdict, findings: Sequence[Finding], job: JobExcess, warnings: Sequence[Notice]) -> str:
    """The answer in one sentence."""
    scope = f"{_count(len(job.ranks), 'rank')}, {_count(len(job.steps), 'step')}"
    if verdict == "straggler":
        parts = [
            f"{_ranks(f.ranks)} ({f.cause.replace('_', ' ')}, {duration(f.time_lost_us_per_step)} a step)"
            for f in findings
        ]
        return f"straggler: {' and '.join(parts)}"
    if verdict == "no_straggler":
        return f"no straggler: {scope}, no rank differs from its peers beyond chance"
    reasons = {w.code: w.message for w in warnings}
    why = reasons.get("one_rank") or reasons.get("few_steps") or reasons.get("few_peers") or "too few peers for a test"
    return f"inconclusive: {scope}; {why}"


def evidence(
    job: JobExcess,
    blamed: BlameResult,
    anomalies: Sequence[Anomaly],
    *,
    ranks: Sequence[int],
    operator: str | None,
    step_time_ns: float,
    lost_ns: float,
) -> tuple[str, ...]:
    """The figures a finding rests on, each with the command that shows it."""
    return (
        *(_anomaly(job, anomaly) for anomaly in anomalies),
        *_waiting(blamed, ranks),
        *_operator(blamed, ranks, operator),
        f"without that the step would take {duration((step_time_ns - lost_ns) / 1e3)} "
        f"instead of {duration(step_time_ns / 1e3)}",
    )


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
    word = "garbage collection" if pattern.cause == "garbage_collection" else _CLASS_WORDS[pattern.cause]
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


def _anomaly(job: JobExcess, anomaly: Anomaly) -> str:
    who = _ranks([int(job.ranks[place]) for place in anomaly.ranks])
    first = int(job.ranks[anomaly.ranks[0]])
    word = _CLASS_WORDS[CLASSES[anomaly.class_index]]
    share = anomaly.excess_ns / job.step_time_ns
    cost = f"{duration(anomaly.excess_ns / 1e3)} a step ({share:.1%})"
    if anomaly.kind == "intermittent":
        k, m = anomaly.events
        what = "host pauses between collectives" if len(job.steps) < FEWEST_STEPS else "large delays"
        return f"{who}: {k} of the {m} {what} in {_count(len(job.steps), 'step')}, through {word} [kair localize]"
    if anomaly.operator is not None:
        return f"{who} spends {cost} more in {anomaly.operator} than its role's median [kair pinpoint --rank {first}]"
    if anomaly.kind == "group":
        return f"{who} spend {cost} each more on {word} than the rest of their role, in the mean [kair localize]"
    return f"{who} spends {cost} more on {word} than the rest of its role, in the mean [kair localize]"


def _slow_link(slow: SlowLink, step_time_ns: float) -> str:
    own, expected = duration(slow.own_ns / 1e3), duration(slow.expected_ns / 1e3)
    what = f"collectives of process group {slow.link.group}" if slow.link.group is not None else slow.link.name
    return (
        f"{what} takes {own} a step, waiting excluded; its {_count(slow.siblings, 'sibling')} {expected} (median): "
        f"{(slow.own_ns - slow.expected_ns) / step_time_ns:.1%} of the step [kair localize]"
    )


def _waiting(blamed: BlameResult, ranks: Sequence[int]) -> Iterator[str]:
    mine = [row for row in blamed.by_rank if row.rank in ranks]
    if not mine or not blamed.collectives:
        return
    last = sum(row.arrived_last for row in mine)
    waited, share = sum(row.blamed_us for row in mine), sum(row.share for row in mine)
    yield (
        f"{_ranks(ranks)} came last to {last} of {blamed.collectives} collectives; peers waited "
        f"{waited / 1e6:.3g} rank-seconds for it, {share:.0%} of all waiting [kair blame --rank {ranks[0]}]"
    )


def _operator(blamed: BlameResult, ranks: Sequence[int], operator: str | None) -> Iterator[str]:
    if operator is None:
        return
    causes = [c for c in blamed.root_causes if c.rank in ranks and c.operator is not None][:4]
    if causes:
        listed = "; ".join(
            f"{_place(c)} ({duration(c.blamed_us)} over {_count(c.synchronisations, 'collective')})" for c in causes
        )
        yield f"what made it late: {listed} [kair blame --rank {ranks[0]} -o tree]"
    else:
        yield f"the operator behind it: {operator} [kair pinpoint --rank {ranks[0]}]"


def _place(cause: RootCause) -> str:
    if cause.operator == STEP_BEGIN:
        return "late already when the step began"
    return f"idle before {cause.operator}" if cause.is_edge else str(cause.operator)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed = sorted(ranks)
    if len(listed) > 2 and np.all(np.diff(listed) == 1):
        return f"ranks {listed[0]}–{listed[-1]}"
    return "ranks " + ", ".join(map(str, listed[:8])) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
