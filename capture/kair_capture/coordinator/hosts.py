"""The hosts of the job: who lives, what their agents count, how well their clocks are known."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from kair_capture.wire.messages import Beat, Host

_SILENT_S = 5.0
_SILENT_BEATS = 6
MOST_HOSTS = 1 << 15


@dataclass
class HostState:
    """One agent; another one of the same ranks takes its place."""

    name: str
    sender: int
    ranks: tuple[int, ...] = ()
    had: frozenset[int] = frozenset()
    """Those that have ended as well."""
    beat: Beat = field(default_factory=Beat)
    heard_s: float = 0.0
    is_silent: bool = False

    def lives(self, now: float) -> bool:
        """Whether it was heard of late, and has ranks."""
        return bool(self.beat.ranks) and now - self.heard_s <= _SILENT_S

    @property
    def clock_bound_us(self) -> float | None:
        """How well its clock is known."""
        return None if self.beat.bound_ns is None else self.beat.bound_ns / 1000


class Hosts:
    """By name, and by the number that an agent signs with."""

    def __init__(self) -> None:
        self._by_name: dict[str, HostState] = {}
        self._by_sender: dict[int, HostState] = {}
        self._alike: dict[str, list[HostState]] = {}
        """The name that agents say → those that say it: launchers, or containers, may share a host's."""
        self.world_size = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[HostState]:
        return iter(self._by_name.values())

    def introduce(self, host: Host, sender: int, now: float) -> bool:
        """An agent says who it is. False where there are too many hosts already."""
        state = self._state_of(host, sender, now)
        if state is None:
            return False
        if state.sender != sender:
            self._by_sender.pop(state.sender, None)
            state.sender = sender
        # An agent that ends says that it has no ranks: those that it had keep their place.
        if host.ranks:
            state.ranks, state.had = host.ranks, state.had | set(host.ranks)
            # Its beat has not come yet; until then it is not taken for one whose ranks have ended.
            state.beat = replace(state.beat, ranks=len(host.ranks))
        state.heard_s = now
        self._by_sender[sender] = state
        self.world_size = max(self.world_size, host.world_size)
        return True

    def _state_of(self, host: Host, sender: int, now: float) -> HostState | None:
        """Its own, that of the agent before it, or a new one: None where there are too many."""
        alike, own = self._alike.setdefault(host.name, []), self._by_sender.get(sender)
        before = next((one for one in alike if one is not own and not set(one.ranks).isdisjoint(host.ranks)), None)
        if before is not None:
            if own is not None and not own.ranks:
                alike.remove(own)
                del self._by_name[own.name]
            return before
        state = own or next((one for one in alike if not one.lives(now)), None)
        if state is None and len(self._by_name) < MOST_HOSTS:
            names = (host.name if number == 1 else f"{host.name}#{number}" for number in count(1))
            state = HostState(next(name for name in names if name not in self._by_name), sender)
            self._by_name[state.name] = state
            alike.append(state)
        return state

    def hear(self, sender: int, beat: Beat, now: float) -> HostState | None:
        """A beat of an agent; None where that has not said who it is."""
        state = self._by_sender.get(sender)
        if state is not None:
            state.beat, state.heard_s = beat, now
        return state

    def clock_offset_us(self, sender: int) -> float:
        """An agent's clock minus the coordinator's; 0 while that is not known."""
        state = self._by_sender.get(sender)
        return 0.0 if state is None or state.beat.bound_ns is None else state.beat.offset_ns / 1000

    def by_rank(self) -> dict[int, str]:
        """rank → its host, or where it was last."""
        had = {rank: state.name for state in self._by_name.values() for rank in state.had}
        return had | {rank: state.name for state in self._by_name.values() for rank in state.ranks}

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
    def sampled_every(self) -> int:
        """Steps between those that ranks sample unasked, of the living rank that does so least; 0 for none."""
        living = (state.beat for state in self._by_name.values() if not state.is_silent)
        return max((beat.sampled_every for beat in living if beat.ranks), default=0)

    @property
    def delivered(self) -> int:
        """Fragments that the agents delivered: when it changes, there is something to commit."""
        return sum(state.beat.delivered for state in self._by_name.values())
