"""What each kind of open item says, and its figures: `kair schema` prints it next to the kind."""

from collections.abc import Mapping
from typing import Final

from kair_engine.results.triage import OpenKind

OPEN_KINDS: Final[Mapping[OpenKind, str]] = {
    "unrecorded": "Ranks that left no trace are waited for: `us_per_step` is the least that they cost.",
    "unmatched": "Collectives were not matched across ranks: who waits in them is unknown.",
    "event": "A few steps took much longer, too few to accuse anybody. `took_us` and `usual_us` say how long.",
    "uneven": "Work differs from rank to rank or from step to step, on nobody in particular.",
    "waiting": "Ranks are waited for, and no test sets them apart; or a replay does not confirm one (`replayed_us`).",
    "changed": "Steps take longer from one step on. `took_us` and `usual_us` say how long after it and before it.",
    "idle": "Nothing was recorded for this time.",
    "groups_differ": "One group is slower than its siblings, or one half than the other: which is usual is unknown.",
    "no_peer": "Ranks that were not compared with peers; the whole step where none has a peer.",
    "few_steps": "Ranks that were slower in all of too few steps for a test; the whole step where none can be tested.",
}
