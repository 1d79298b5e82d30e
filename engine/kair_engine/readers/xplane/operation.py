"""One operation on a device, as a profile of XLA tells it."""

import msgspec

from kair_engine.readers.xplane.hlo import Instruction


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One operation on a device; times in ns."""

    lane: str
    name: str
    start: int
    duration: int
    instruction: Instruction
    op_name: str
    module: str
    run: int | None = None
    """Which execution of a module it is part of."""
    correlation: int | None = None
    """The call that launched it, where calls are recorded."""

    @property
    def end(self) -> int:
        """When it was over, in ns."""
        return self.start + self.duration


def leaves(rows: list[Operation]) -> list[Operation]:
    """The operations without those that hold others of their lane: loops and calls, whose time is their parts'."""
    rows.sort(key=lambda one: (one.lane, one.start, -one.duration))
    return [
        one
        for at, one in enumerate(rows)
        if at + 1 == len(rows)
        or rows[at + 1].lane != one.lane
        or rows[at + 1].end > one.end
        or rows[at + 1].start >= one.end
    ]
