"""Reads traces of NCCL's example profiler plug-in: Chrome's events, one per line, a file per communicator and rank.

`NCCL_PROFILE_DUMP_FILE` names the files. A collective's line is followed by those of its kernels, one per channel, with
the device's clock. This follows `print_event.cc` in plugins/profiler/example of NVIDIA/nccl, which writes them, without
having run on a GPU.
"""

from typing import Final

import msgspec

from kair_engine.readers.inspector_lines import Operation, Owner
from kair_engine.readers.paths import MAX_RANKS

_SIZES: Final = (("64", 8), ("32", 4), ("16", 2))
_MOST_CLOCK: Final = 1 << 62


class _Args(msgspec.Struct):
    SeqNum: int = -1
    CommHash: int = -1
    Rank: int = -1
    Count: int = 0
    Datatype: str = ""
    StartGpuClk: int = 0
    StopGpuClk: int = 0


class _Event(msgspec.Struct):
    name: str
    cat: str
    ph: str
    pid: int = 0
    args: _Args = msgspec.field(default_factory=_Args)


def fits(head: bytes) -> bool:
    """Return whether a file begins as the plug-in's do."""
    kinds = (b'"cat": "GROUP', b'"cat": "COLL', b'"cat": "P2P', b'"cat": "KERNEL_LAUNCH"', b'"cat": "PROXY"')
    return head.startswith(b"[") and any(kind in head for kind in kinds)


class ProfilerLines:
    """Reads the lines of one file in order, as `InspectorLines` does."""

    lost = 0
    """The plug-in does not count overwritten events."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_Event).decode
        self._collective: _Event | None = None
        self._first = self._last = self._longest = 0
        self.passed_over = 0

    def take(self, line: str) -> Operation | None:
        """Return the collective that ends with this line, else None."""
        if '"COLL"' not in line and '"GPU"' not in line:
            return None
        try:
            event = self._decode(line.rstrip(", "))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self.passed_over += 1
            return None
        if event.cat == "GPU":
            self._kernel(event.args)
            return None
        ended, self._collective = self._collective, event if event.ph == "b" else None
        found = self._ended(ended) if event.ph == "e" and ended is not None else None
        self.passed_over += event.ph == "e" and found is None
        self._first = self._last = self._longest = 0
        return found

    def _kernel(self, args: _Args) -> None:
        if 0 < args.StartGpuClk < args.StopGpuClk < _MOST_CLOCK:
            self._first = min(self._first or args.StartGpuClk, args.StartGpuClk)
            self._last = max(self._last, args.StopGpuClk)
            self._longest = max(self._longest, args.StopGpuClk - args.StartGpuClk)

    def _ended(self, event: _Event) -> Operation | None:
        of = event.args
        if not 0 <= of.Rank < MAX_RANKS or not 0 <= of.SeqNum < _MOST_CLOCK or not 0 <= of.Count < 1 << 48:
            return None
        owner = Owner(hex(of.CommHash), of.Rank, 0, 0, ("", event.pid), self._last // 1000)
        width = next((size for text, size in _SIZES if text in of.Datatype), 1)
        source = "kernel_gpu" if self._longest else "collective_cpu"
        times = self._longest / 1000, source, 0.0, 0.0, self._first // 1000, self._last // 1000
        return Operation(owner, "coll", event.name[:40], of.SeqNum, of.Count * width, -1, *times)
