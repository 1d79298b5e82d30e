"""What each kind of limit says, and its figures: `kair schema` prints it next to the kind."""

from collections.abc import Mapping
from typing import Final

from kair_engine.results.sensitivity import ReasonKind

REASON_KINDS: Final[Mapping[ReasonKind, str]] = {
    "one_rank": "There is no peer.",
    "few_steps": "So few steps do not separate a slow rank from a slow moment. Figures: steps, fewest_steps.",
    "no_compute": "No compute operations were recorded.",
    "no_operator": "None in which ranks differ by as much. Figures: differing_share_of_step.",
    "no_input": "No input fetches were recorded.",
    "no_siblings": "No link has as many. Figures: siblings.",
    "more_steps": (
        "With so many steps this much is found. Figures: steps, recorded_steps, and share_of_step; of stalls "
        "stalled_steps, recorded_stalled_steps."
    ),
    "smallest_reported": (
        "It is found almost as soon as it is reported at all. Figures: share_of_step; of a link also "
        "share_of_self_time."
    ),
    "no_peer": "Most ranks are alone in their role.",
    "one_peer": "The only peer could as well be the fast one.",
    "too_different": "It is found at no size.",
    "spread_unknown": "How much so many healthy ranks differ is little known. Figures: healthy.",
    "spread": "Ranks differ for good. Figures: spread_us, share_of_step.",
}
"""What keeps a smaller fault from being found."""
