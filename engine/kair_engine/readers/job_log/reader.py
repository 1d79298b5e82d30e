"""Logs of jobs, one of all ranks or one of each: of whom NCCL's watchdog says that a call timed out."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.readers.blocks import BlockReader
from kair_engine.readers.detect import NotATraceError
from kair_engine.readers.identity import host_of, rank_from_name
from kair_engine.readers.job_log.watchdog import SIGNS, Reports
from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import FragmentInfo, StepTimes

_LONGEST_LINE: Final = 16 << 10
_NCCL: Final = re.compile(rb"NCCL (INFO|WARN|TRACE) ")
_WORLD: Final = re.compile(rb"""(?i)\bworld[ _-]?size['"]?\s*[:=]\s*(\d{1,7})\b|\bnranks (\d{1,7})\b""")
_WORLD_WORDS: Final = (b"orld", b"ORLD", b"nranks")
_WAY_OUT: Final = (
    "ask the hung job with ncclras -v, or run it with TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1: "
    "Flight Recorder dumps tell who has called what"
)


def read_job_log(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Writes an empty fragment `out`, and says how far the ranks came that the watchdog reports on.

    A line's rank is in it; `rank_hint`, or the file's name, is that of lines without. Raises NotATraceError where
    the watchdog says nothing, with the way out where the log is one of NCCL.
    """
    of_file = rank_hint if rank_hint is not None else rank_from_name(source)
    reports, is_of_nccl, world = Reports(of_file), False, 0
    for block in _whole_lines(source):
        is_of_nccl = is_of_nccl or (b"NCCL " in block and _NCCL.search(block) is not None)
        if any(word in block for word in _WORLD_WORDS):
            world = max([world, *(int(one[1] or one[2]) for one in _WORLD.finditer(block))])
        if reports.is_in_stack or any(sign in block for sign in SIGNS):
            for line in block.split(b"\n"):
                reports.take(line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip())
    progress = reports.progress(world)
    if not progress:
        if is_of_nccl:
            # Beside traces such logs are usual: they are passed over in silence.
            raise NotATraceError("it is a log of NCCL without a time-out of PyTorch's watchdog", _WAY_OUT)
        raise NotATraceError("it is text, and no time-out of NCCL's watchdog is in it")
    host = host_of(source)
    info = FragmentInfo(
        source=str(source),
        format="job_log",
        ranks=tuple(progress),
        rank_known=True,
        world_size=world if world > max(progress) else None,
        hosts=dict.fromkeys(progress, host) if host else {},
        device=None,
        has_device=False,
        absolute_time=True,
        operations=0,
        layout=None,
        step_times=StepTimes((), (), (), (), ()),
        warnings=(),
        calls=progress,
    )
    write_fragment(out, (), msgspec.to_builtins(info, str_keys=True))
    return info


def _whole_lines(source: Path) -> Iterator[bytes]:
    """The file in blocks that end where a line does, or where one is too long."""
    rest = b""
    for block in BlockReader(source):
        end = block.rfind(b"\n") + 1
        if not end and len(rest) < _LONGEST_LINE:
            rest += block
            continue
        yield rest + block[:end]
        rest = block[end:]
    yield rest
