"""The hosts of the job: who lives, what their agents count, how well their clocks are known."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kair_capture.wire.messages import Beat, Host

_SILENT_S = 5.0
_SILENT_BEATS = 6
MOST_HOSTS = 1 << 15


@dataclass
class HostState:
    """One agent; another one on the same host takes its place."""

    name: str
    sender: int
    ranks: tuple[int, ...] = ()
    beat: Beat = field(default_factory=Beat)
    heard_s: float = 0.0
    is_silent: bool = False

    @property
    def clock_bound_us(self) -> float | None:
        """How well its clock is known."""
        return None if self.beat.bound_ns is None else self.beat.bound_ns / 1000


class Hosts:
    """By name, and by the number that an agent signs with."""

    def __init__(self) -> None:
        self._by_name: dict[str, HostState] = {}
        self._by_sender: dict[int, HostState] = {}
        self.world_size = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[HostState]:
        return iter(self._by_name.values())

    def introduce(self, host: Host, sender: int, now: float) -> bool:
        """An agent says who it is. False where there are too many hosts already."""
        state = self._by_name.get(host.name)
        if state is None:
            if len(self._by_name) >= MOST_HOSTS:
                return False
            state = self._by_name[host.name] = HostState(host.name, sender)
        if state.sender != sender:
            self._by_sender.pop(state.sender, None)
            state.sender = sender
        # An agent that ends says that it has no ranks: those that it had keep their place.
        if host.ranks:
            state.ranks = host.ranks
            # Its beat has not come yet; until then it is not taken for one whose ranks have ended.
            state.beat = replace(state.beat, ranks=len(host.ranks))
        state.heard_s = now
        self._by_sender[sender] = state
        self.world_size = max(self.world_size, host.world_size)
        return True

    def hear(self, sender: int, beat: Beat, now: float) -> HostState | None:
        """A beat of an agent; None where that has not said who it is."""
        state = self._by_sender.get(sender)
        if state is not None:
            state.beat, state.heard_s = beat, now
        return state

    def host_of(self, rank: int) -> str | None:
        """The host of a rank."""
        return next((state.name for state in self._by_name.values() if rank in state.ranks), None)

    def ranks(self) -> list[int]:
        """All ranks, of hosts that are heard."""
        return sorted({rank for state in self._by_name.values() if not state.is_silent for rank in state.ranks})

    def listen(self, now: float, interval_s: float) -> tuple[list[HostState], list[HostState]]:
        """Hosts that fell silent since the last call, and those that are heard again."""
        lost: list[HostState] = []
        found: list[HostState] = []
        patience = max(_SILENT_S, _SILENT_BEATS * interval_s)
        for state in self._by_name.values():
            is_silent = now - state.heard_s > patience
            if is_silent != state.is_silent:
                state.is_silent = is_silent
                (lost if is_silent else found).append(state)
        return lost, found

    @property
    def delivered(self) -> int:
        """Fragments that the agents delivered: when it changes, there is something to commit."""
        return sum(state.beat.delivered for state in self._by_name.values())
