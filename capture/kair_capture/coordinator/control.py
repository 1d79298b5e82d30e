"""Defines what `kair capture set JOB key=value` can change while the job runs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kair_capture.control import MOST_EVERY, RankControl
from kair_capture.coordinator.detection import LEAST_EXCESS, LEAST_EXCESS_OF_MANY, LEAST_SHIFT, MANY, Least
from kair_capture.settings import share_in

DEFAULT: Final = "default"
"""The value that resets a key."""
_LEAST_STALLED_S, _MOST_STALLED_S = 1.0, 1e6


class SettingError(ValueError):
    """Raised for an invalid key or value; the text is one line that names it."""


@dataclass(frozen=True)
class Key:
    """A key that can be set."""

    wanted: str
    """The values that it takes, in words."""
    does: str
    """Its effect, in a few words."""
    value: Callable[[str], Any]
    """Parses a value. Raises ValueError."""


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[text]


def _level(text: str) -> int:
    return {"0": 0, "1": 1}[text]


def _every(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or int(text) > MOST_EVERY:
        raise ValueError(text)
    return int(text)


def _some_share(text: str) -> float:
    if not (share := share_in(text)) > 0:
        raise ValueError(text)
    return share


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and _LEAST_STALLED_S <= seconds <= _MOST_STALLED_S):
        raise ValueError(text)
    return seconds


KEYS: Final[Mapping[str, Key]] = {
    "capture": Key("on or off", "off: ranks record nothing, so nothing is noticed", _switch),
    "level": Key("0 or 1", "0: only steps, windows only by hand; 1: sampled windows too", _level),
    "max-overhead": Key("a share such as 1%", "the share of the job's time that sampling may take", share_in),
    "sample-every": Key("a number of steps, 0 for never", "ranks sample one step in so many by themselves", _every),
    "slow-rank": Key("a share such as 8%", "a rank that takes so much longer than its peers is slow", _some_share),
    "longer-steps": Key("a share such as 15%", "a step that takes so much longer than usual is long", _some_share),
    "stalled-after": Key("seconds, 1 or more", "without a finished step for so long, the job hangs", _seconds),
}


@dataclass(frozen=True)
class Control:
    """What was set, as typed: key → value."""

    values: Mapping[str, str]

    @classmethod
    def remembered(cls, values: Mapping[str, str]) -> "Control":
        """Return the settings of a file; unknown keys and values are ignored."""
        return cls({key: value for key, value in values.items() if key in KEYS and _is_value(key, value)})

    def changed(self, changes: Mapping[str, str]) -> "Control":
        """Return the settings with these set or reset. Raises SettingError, and then none changes."""
        for key, value in changes.items():
            require(key, value)
        kept = {key: value for key, value in {**self.values, **changes}.items() if value != DEFAULT}
        return Control(kept)

    def value(self, key: str, started_with: Any = None) -> Any:  # noqa: ANN401  (of the key's own type)
        """Return what was set, or what the coordinator was started with."""
        return KEYS[key].value(self.values[key]) if key in self.values else started_with

    @property
    def is_on(self) -> bool:
        """Return whether ranks record."""
        return self.value("capture") is not False

    @property
    def samples(self) -> bool:
        """Return whether windows are ordered without a request."""
        return self.is_on and self.value("level") != 0

    @property
    def least(self) -> Least:
        """Return the thresholds of alerts."""
        return Least(self.value("slow-rank"), self.value("longer-steps", LEAST_SHIFT))

    @property
    def of_ranks(self) -> RankControl:
        """Return the settings of ranks."""
        every = self.value("sample-every") if self.samples else 0
        return RankControl(self.is_on, every, self.value("max-overhead"))

    def in_force(self, *, max_overhead: float, stalled_after_s: float) -> dict[str, str]:
        """Return key → present value, in words, defaults included; the arguments are the coordinator's start values."""
        usual = {
            "capture": "on",
            "level": "1",
            "max-overhead": f"{max_overhead:.4g}" if max_overhead < 1e-4 else f"{max_overhead * 100:.4g}%",
            "sample-every": "KAIR_SAMPLE_EVERY",
            "slow-rank": f"{LEAST_EXCESS * 100:.0f}%, {LEAST_EXCESS_OF_MANY * 100:.0f}% from {MANY} ranks on",
            "longer-steps": f"{LEAST_SHIFT * 100:.0f}%",
            "stalled-after": f"{stalled_after_s:g}",
        }
        return {key: self.values.get(key, usual[key]) for key in KEYS}


def require(key: str, value: str) -> None:
    """Raise SettingError unless the key can be set to the value, or reset."""
    if key not in KEYS:
        raise SettingError(f"there is no setting {key[:40]!r}: {', '.join(KEYS)}")
    if value != DEFAULT and not _is_value(key, value):
        raise SettingError(f"{key} must be {KEYS[key].wanted}, or {DEFAULT}; got {value[:40]!r}")


def _is_value(key: str, value: str) -> bool:
    try:
        KEYS[key].value(value)
    except (ValueError, KeyError):
        return False
    return True
