"""Descriptions of a result's fields: the texts under them in the source, else what the name means everywhere.

Words for fields whose names say the same in every answer, and for a few whose records need no more than a line.
"""

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from textwrap import dedent
from typing import Any, Final, get_args, get_type_hints

from msgspec import Struct


def describe(definitions: dict[str, Any], records: Iterable[type[Any]]) -> None:
    """Add descriptions to the properties of a schema's definitions, which are those of `records` by their names."""
    for record in records:
        under: dict[str, str] = {}
        for base in reversed(record.__mro__):
            under |= _texts_under_fields(base)
        for name, known in definitions.get(record.__name__, {}).get("properties", {}).items():
            of_record = (FIELD_WORDS.get(f"{base.__name__}.{name}") for base in record.__mro__)
            text = under.get(name) or next(filter(None, of_record), FIELD_WORDS.get(name))
            if text:
                known.setdefault("description", text)


def records_in(kind: Any) -> set[type[Any]]:  # noqa: ANN401
    """Return the records that a type is made of, itself included."""
    found: set[type[Any]] = set()
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        waiting += get_args(one)
        if isinstance(one, type) and one not in found and (is_dataclass(one) or issubclass(one, Struct)):
            found.add(one)
            waiting += get_type_hints(one).values()
    return found


@cache
def _texts_under_fields(record: type[Any]) -> dict[str, str]:
    """By field, the text that stands under it. Empty where the source is not at hand."""
    try:
        body = ast.parse(dedent(inspect.getsource(record))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).replace("None", "null").split())
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


FIELD_WORDS: Final[Mapping[str, str]] = {
    "analysis": "The command whose answer shows the figures.",
    "attributed_us": "What was waited for a known cause, summed over ranks.",
    "BlameResult.by_rank": "How much of the waiting is laid to each rank, the most first.",
    "StepPrice.by_rank": "S of each rank, the largest first.",
    "blamed_us": "What others, summed, waited for it.",
    "by_dp_rank": "S of each data-parallel rank, the largest first.",
    "by_operator_type": "S of each kind of time or operation type, the largest first.",
    "by_stage": "S of each pipeline stage, the largest first.",
    "cause": "Why the time is lost.",
    "chain": "From the symptom back to what it comes from.",
    "clock": "How far the ranks' clocks agree.",
    "code": "Stable, for machines.",
    "collectives": "Collective operations that were looked at.",
    "complete": "Whether all of the step was recorded.",
    "completed": "The share of the rank's operations that had completed by then.",
    "corrected_links": "Links that stand out already: what makes them do so was taken out first.",
    "count": "How often it ran.",
    "FrequencyResult.counts": "Of every rank.",
    "counts": "How often it ran in each window.",
    "curve": "The rank's completion curve, and its peers'.",
    "degraded": "Windows in which a rank ran it less often than its peers.",
    "device": "The model of the ranks' devices; null where none is recorded.",
    "dp": "Data-parallel ranks.",
    "dp_rank": "The data-parallel rank of each rank.",
    "draws": "How often each size of a fault was put into the recording.",
    "duration_us": "How long it took.",
    "duration_z": "How far its duration lies from its peers', in standard deviations.",
    "evidence": "What speaks for it, in the order in which it is told.",
    "Explanation.joined_by": "What ties the evidence to the rank, in order of trust; null where nothing was looked at.",
    "Explanation.unit": "Of own, peers and before; empty where they are numbers or texts.",
    "Explanation.word": (
        "explains: differs from peers, and its size and time fit; consistent: differs, and nothing speaks against it; "
        "seen: peers have it too; excluded: well sampled, and absent; not_tied: a source tells it, of "
        "devices that could not be tied to the rank; not_observed: no source tells."
    ),
    "expected": "How often its peers ran it, the median.",
    "fault": "What was put into the recording.",
    "faults": "The smallest of each kind.",
    "figures": "By name; units are in the names, shares are of 1.",
    "findings": "Culprits, and what slows the job though nobody is to blame; the costliest first.",
    "fix": "What is taken to be as it should be, or scaled.",
    "fixes": "The price of each fix that was asked for, then of all together.",
    "GroupScore.flagged": "How many of its ranks are flagged.",
    "flagged": "Whether a test sets it apart from its peers.",
    "format": "Of the recording.",
    "group": "The name of the host, role, process group or pipeline edge.",
    "Happening.entity": "What it happened to: `gpu:GPU-5f3e…`, `nic:mlx5_3/1`, `host`.",
    "Happening.value": "The number that it comes with, as of an XID; null where it has none.",
    "host": "Where it runs; null where that is not recorded.",
    "Fix.hosts": "Empty for all.",
    "hosts": "The ranks of each host.",
    "ideal_step_time_us": "Replayed without any straggler, the mean over steps.",
    "peer_ideal_step_time_us": "Replayed with nothing longer than on its peers, the mean over steps.",
    "ideal_us": "Replayed without any straggler.",
    "EvidenceSource.clock": (
        "What its times are: kept by a time server (unix), by a host's own clock (host), since a host's start and made "
        "Unix by an assumption (boot), or unknown."
    ),
    "EvidenceSource.first_ns": "Of its rows, the first, Unix; null where it has none.",
    "EvidenceSource.last_ns": "The last of them.",
    "EvidenceSource.longest_gap_s": "The longest time that nothing came.",
    "EvidenceSource.rows": "Readings and events that it has.",
    "in_use": "Whether commands take it when no job is named.",
    "is_edge": "Whether the time went by before the operator began, idle.",
    "jobs": "By name.",
    "EvidenceInWords.kind": "What the figures are.",
    "KairWarning.kind": "Which figures it has: none.",
    "OpenItem.kind": "What is open.",
    "PathNode.kind": "What kind of operation it is.",
    "Reason.kind": "What limits it.",
    "last_summary": "The same as a sentence.",
    "launch_by_dp_rank": "The same of each data-parallel rank.",
    "launch_by_stage": "The same of each pipeline stage.",
    "layout": "How ranks are arranged; null where that is not known.",
    "limited_by": "What keeps a smaller one from being found; null where no size is.",
    "longer": "What more steps would show.",
    "longest_us": "The longest stop.",
    "matched_collectives": "Those of which all members' parts were found.",
    "max_offset_us": "The largest correction of a rank's clock.",
    "max_score": "The highest of its ranks.",
    "max_us": "On the slowest rank.",
    "mean_score": "The mean of its ranks.",
    "measured_step_time_us": "As recorded, the mean over steps.",
    "measured_us": "As recorded.",
    "HostStops.median_us": "Half of the stops are longer.",
    "median_us": "The median over the ranks.",
    "message": "For people; the wording changes.",
    "method": "Robust statistics, or the published method.",
    "missing_ranks": "Ranks of the job that left no trace.",
    "name": "Of the job.",
    "occurrence": "Which of the operator's runs in the step, from 0.",
    "operations": "How many were recorded.",
    "operations_by_kind": "How many of each kind were recorded.",
    "operator": "Its name in the recording; null where no single one can be named.",
    "outliers": "The most outlying first.",
    "p_value": "How often chance alone shows as much, corrected for all that was tried; null where that is not known.",
    "part": "What the time goes into.",
    "parts": "They add up to the step.",
    "path": "Where the store keeps it.",
    "paths": "The longest waiting first.",
    "pattern": "Whether it is of one rank all the time or now and then, of a group, or of the whole job.",
    "patterns": "What slows the job though no rank is at fault.",
    "peer": "Whose curve lies farthest.",
    "peer_completed": "The share of that peer's operations that had completed by then.",
    "peers_median": "Their median.",
    "per_step": "Every step by itself.",
    "phase": "Forward, backward, optimizer or input; null where the recording does not tell.",
    "pp": "Pipeline stages.",
    "priced_by": "A replay of the job without it, or its excess where no replay can tell.",
    "PinpointResult.rank": "Whose operations were looked at.",
    "ShownBy.rank": "What `--rank` has to be; null where it takes none.",
    "rank": "Its number in the job.",
    "ranking": "Every rank, the most suspicious first.",
    "Fix.ranks": "Empty for all.",
    "ListedJob.ranks": "How many left a trace.",
    "StepSummary.ranks": "How many recorded the step.",
    "JobPattern.ranks": "Where it shows.",
    "ranks": "Their numbers, sorted.",
    "remedies": "What would help and is no fix of an operation.",
    "remedy": "What to even out.",
    "role": "The ranks that run the same program; only those are compared.",
    "role_in_path": "Who waited, who is to blame, or what lies between.",
    "roles": "The ranks of each role.",
    "root_causes": "The one that explains most waiting first.",
    "saved_by_dp_rank_us": "Of a step, by the fix of one data-parallel rank.",
    "saved_by_host_us": "Of a step, by the fix of one host.",
    "saved_by_rank_us": "Of a step, by the fix of one rank.",
    "saved_by_stage_us": "Of a step, by the fix of one pipeline stage.",
    "saved_us": "Per step.",
    "score": "How far it stands out; larger is more suspicious.",
    "scores": "Every rank, the most suspicious first.",
    "seed": "Of the random draws.",
    "sentence": "The figures in words, for people.",
    "share": "Of all waiting.",
    "siblings": "Process groups or edges with the same transfers, which it is compared with.",
    "slow_links": "Process groups and pipeline edges that are slower than their siblings.",
    "slow_operators": "Ranks that are slow in one operator.",
    "slowdown": "S: step time over the ideal step time (1.0 = no effect).",
    "slowest_rank": "Where the step took longest.",
    "smallest_share_of_step": "The same over the step time.",
    "smallest_us_per_step": "The smallest one that would be found.",
    "ClockInfo.source": "What corrects the clocks.",
    "source": "The path that it was read from.",
    "stages": "Of the pipeline; empty for all.",
    "stalled_steps": "In how many steps a rank has to stall to be found; null for other faults.",
    "Outlier.start_us": "From the step's begin on this rank.",
    "start_us": "Where the window begins, from the step's begin.",
    "start_z": "How far its begin lies from its peers', in standard deviations; null where that is not known.",
    "state": "Whether the rank ran it not at all, or less often.",
    "step": "Its number in the recording.",
    "step_time_us": "The mean over steps.",
    "FindingInWords.steps": "In which it shows.",
    "JobPattern.steps": "In which it shows.",
    "RootCause.steps": "In which it made ranks wait.",
    "ImportResult.steps": "That were recorded.",
    "InfoResult.steps": "That were recorded.",
    "ListedJob.steps": "How many were recorded.",
    "LongerRecording.steps": "How many would be recorded.",
    "StepsResult.steps": "Every step on every rank.",
    "steps": "Those that were analysed.",
    "store": "The folder of the job store.",
    "StepsResult.summary": "Every step over all ranks.",
    "symptom": "The operation that waited.",
    "synchronisations": "In how many collectives, sends or receives.",
    "text": "A sentence for people.",
    "time_us": "Since the step's begin.",
    "tp": "Tensor-parallel ranks.",
    "unattributed_us": "What was waited for no known cause, summed over ranks.",
    "unattributed_us_per_step": "What was waited for no known cause, summed over ranks.",
    "verdict": "Whether a rank, host or link is accused, the whole job is slowed, nobody is, or that is open.",
    "waited_us": "Summed over collectives.",
    "waiting_us": "What all ranks, summed, waited.",
    "waiting_us_per_step": "What all ranks, summed, waited.",
    "warnings": "What the reader of the answer should know.",
    "DegradedWindow.window": "Which one, from 0.",
    "window_us": "How long a window lasts.",
    "windows": "How many windows a step has.",
    "world_size": "Ranks of the job, whether or not they left a trace.",
}
"""By the field's name; `Record.field` where the name says something else in one record."""
