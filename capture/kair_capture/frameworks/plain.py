"""A job whose framework capture does not know: the script says its steps and scopes, and CUPTI sees the GPU."""

from collections.abc import Mapping
from typing import Any

from kair_capture.frameworks.cupti import CuptiProfile, CuptiRefusedError, load_cupti


class PlainJob:
    """What a session asks; see Framework."""

    marks_input = False

    def __init__(self) -> None:
        self.refusal: str | None = None
        """Why CUPTI was not to be had when it was last asked for."""

    def place(self) -> tuple[int, int] | None:
        """Nobody but the launcher says it."""
        return None

    def description(self) -> Mapping[str, Any]:
        """There is little to say."""
        return {"framework": "none"}

    def watch_communication(self) -> None:
        """Nobody tells of it."""

    def communication(self) -> None:
        """Nobody tells of it."""

    def start_profile(self) -> CuptiProfile | None:
        """CUPTI; None where it is not to be had."""
        try:
            return CuptiProfile(load_cupti())
        except CuptiRefusedError as error:
            self.refusal = str(error)
            return None
