"""Classifies events: the kind of operation and the phase of training, by category and name.

Phases (forward, backward, optimizer, input) come from the scopes around an operation.
"""

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import is_one_of
from kair_engine.trace.format import KINDS, PHASES, QUEUE_FULL


class Category(IntEnum):
    """Kineto's event categories that become rows of the operations table."""

    NONE = 0
    CPU_OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    OVERHEAD = 4
    KERNEL = 5
    COPY = 6
    DEVICE_ANNOTATION = 7
    """An annotation's span on a stream; no operation, but it can mark steps."""


class NameClass(IntEnum):
    """What a name implies about its operation. Each class matters in some categories only."""

    PLAIN = 0
    STEP = 1
    DATA_LOADER = 2
    GARBAGE_COLLECTION = 3
    SYNCHRONIZE = 4
    DEVICE_COLLECTIVE = 5
    HOST_COLLECTIVE = 6
    HOST_SEND = 7
    HOST_RECV = 8
    COLLECTIVE_CALL = 9
    COLLECTIVE_RECORD = 10
    BACKWARD = 11
    OPTIMIZER = 12
    COLLECTIVE_WAIT = 13


DEVICE_CATEGORIES: Final = (Category.KERNEL, Category.COPY)

# Includes names of torch 1.8's first Kineto traces (`Operator`, `Kernel`).
_CATEGORIES: Final = {
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.ANNOTATION,
    "runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "overhead": Category.OVERHEAD,
    "kernel": Category.KERNEL,
    "concurrent_kernel": Category.KERNEL,
    "gpu_memcpy": Category.COPY,
    "gpu_memset": Category.COPY,
    "memcpy": Category.COPY,
    "memset": Category.COPY,
    "mtia_ccp_events": Category.KERNEL,
}
_RUNTIME: Final = re.compile(r"_(runtime|driver)$")

STEP_MARK: Final = re.compile(r"ProfilerStep#(\d{1,9})", re.IGNORECASE)
# In addition to NCCL and its relatives: Transformer Engine's userbuffers, DeepEP, vLLM's and SGLang's custom
# all-reduce, symmetric memory (multimem, one-shot, two-shot), NVSHMEM, Ascend's HCCL, and generic names.
_DEVICE_COLLECTIVES: Final = "|".join(
    (
        r"(void )?(nccl(dev)?kernel|nccl_|rccl|msccl|hccl|hcom_|k?userbuffers_)",
        r"(void )?(deep_ep|dpsk::ep)::(?!layout)",
        r".*(cross_device_reduce|multimem_|nvshmem|quickreduce|(one|two)_?shot_?\w*all_?reduce|allreduce_fusion)",
        r"(.*[^a-z])?(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)(?!.*gemm)",
    )
)
# Names that people give to a range around it.
_FETCHES: Final = "|".join(
    (
        r"inputs?|data|data[ _-]?(load(ing|er)?|fetch(ing)?)|(input|batch)[ _-](load|fetch)(ing)?",
        r"(get|load|fetch|read|next)[ _-]((a|the|next)[ _-])?(data|batch|inputs?)",
    )
)
# In addition to explicit names: SYCL's unified runtime and its predecessor, OpenCL, and Cambricon. A function that a
# recording calls often enough is also recognised by its behaviour (blocking_calls.py).
_WAITS: Final = r"(ur|pi)(QueueFinish|Events?Wait)$|cl(Finish|WaitForEvents)$|cn(rt)?(Queue|Notifier)?(Sync|Wait)\w*$"
_RULES: Final = tuple(
    (NameClass(name_class), tuple(words.split()), re.compile(pattern, re.IGNORECASE))
    for name_class, words, pattern in (
        (NameClass.STEP, "profilerstep#", r"ProfilerStep#\d{1,9}$"),
        (NameClass.DATA_LOADER, "dataloader", r"enumerate\(DataLoader\)|.*dataloader.*_next"),
        (NameClass.DATA_LOADER, "data input batch", rf"({_FETCHES})$"),
        (NameClass.COLLECTIVE_RECORD, "record_param_comms", r"record_param_comms$"),
        (NameClass.COLLECTIVE_CALL, "c10d::", r"c10d::(?!.*(barrier_impl|wait))"),
        (NameClass.COLLECTIVE_WAIT, "wait_tensor", r"_?c10d_functional::wait_tensor$"),
        (NameClass.HOST_SEND, "gloo:", r"gloo:\s*i?send"),
        (NameClass.HOST_RECV, "gloo:", r"gloo:\s*(i?recv|receive)"),
        (NameClass.HOST_COLLECTIVE, "gloo:", r"gloo:"),
        (
            NameClass.DEVICE_COLLECTIVE,
            "ccl hcom_ userbuffers_ deep_ep dpsk reduce multimem_ nvshmem gather all",
            _DEVICE_COLLECTIVES,
        ),
        (
            NameClass.GARBAGE_COLLECTION,
            "gc garbage",
            r"(python[ _])?gc($|[:. _\[(])|(python )?garbage[ _]collect",
        ),
        (NameClass.OPTIMIZER, "optimizer", r"optimizer\.(step|zero_grad)#|(.*[^a-z])?optimizer([^a-z]|$)"),
        (
            NameClass.BACKWARD,
            "backward evaluate_function",
            r"autograd::engine::evaluate_function|(?!.*forward)(.*[^a-z])?backward([^a-z]|$)",
        ),
        (NameClass.SYNCHRONIZE, "synchronize queue wait finish sync", rf".*synchronize|{QUEUE_FULL}$|{_WAITS}"),
    )
)
"""(class, prefilter substrings, regex). The prefilter makes matching 3 times faster."""


def category_of(text: str) -> Category:
    """Return the category of an event's `cat`; NONE for anything but operations (flows, Python frames, spans)."""
    text = text.lower()
    if _RUNTIME.search(text):
        return Category.RUNTIME
    return _CATEGORIES.get(text, Category.NONE)


@lru_cache(maxsize=4096)  # a job's ranks run the same operations
def name_class_of(name: str) -> NameClass:
    """Return the class of an operation's name."""
    lower = name.lower() if name.isascii() else ""
    for name_class, words, pattern in _RULES:
        # Some letters beyond ASCII equal an ASCII letter when case is ignored.
        if (not lower or any(word in lower for word in words)) and pattern.match(name):
            return name_class
    return NameClass.PLAIN


def kind_codes(*, has_device: bool, host_collectives: bool) -> npt.NDArray[np.int8]:
    """Return indices into KINDS by (category, name class).

    In a recording without a device, operators count as computing; if no `gloo:` rows time the collectives
    (`host_collectives` false), the calls that issue them stand for them.
    """
    codes = np.full((len(Category), len(NameClass)), KINDS.index("host"), np.int8)
    codes[Category.KERNEL] = KINDS.index("compute")
    codes[Category.KERNEL, NameClass.DEVICE_COLLECTIVE] = KINDS.index("collective")
    codes[Category.COPY] = KINDS.index("memory")
    codes[Category.RUNTIME, NameClass.SYNCHRONIZE] = KINDS.index("sync")
    codes[Category.ANNOTATION] = KINDS.index("scope")
    if not has_device:
        codes[Category.CPU_OP] = KINDS.index("compute")
        codes[Category.CPU_OP, NameClass.COLLECTIVE_RECORD] = KINDS.index("host")
        codes[Category.CPU_OP, NameClass.COLLECTIVE_WAIT] = KINDS.index("sync")
        codes[Category.CPU_OP, NameClass.COLLECTIVE_CALL] = KINDS.index("host" if host_collectives else "collective")
    for category in (Category.CPU_OP, Category.ANNOTATION):
        codes[category, NameClass.DATA_LOADER] = KINDS.index("input")
        codes[category, NameClass.GARBAGE_COLLECTION] = KINDS.index("gc")
        codes[category, NameClass.HOST_COLLECTIVE] = KINDS.index("collective")
        codes[category, NameClass.HOST_SEND] = KINDS.index("send")
        codes[category, NameClass.HOST_RECV] = KINDS.index("recv")
    return codes


UNKNOWN: Final = -1
_BEFORE_ALL: Final = np.iinfo(np.int64).min
Int64s = npt.NDArray[np.int64]
Int8s = npt.NDArray[np.int8]

# If scopes of two phases cover an operation, the later entry wins: the innermost in practice comes last.
_MARKERS: Final = (
    (NameClass.BACKWARD, PHASES.index("backward")),
    (NameClass.OPTIMIZER, PHASES.index("optimizer")),
    (NameClass.DATA_LOADER, PHASES.index("input")),
)


def host_phases(
    *,
    start: Int64s,
    end: Int64s,
    thread: Int64s,
    name_class: npt.NDArray[np.integer[Any]],
    is_scope: npt.NDArray[np.bool_],
    main_thread: int,
) -> Int8s:
    """Return indices into PHASES for host operations; `is_scope` marks those that can mark a phase."""
    phase = np.full(len(start), PHASES.index("forward"), np.int8)
    for marker, code in _MARKERS:
        marks = np.flatnonzero(is_scope & (name_class == marker))
        phase[within_marks(marks, start, end, thread)] = code
        if marker is NameClass.BACKWARD:
            # Autograd's own threads only run backward, also between its functions.
            phase[is_one_of(thread, set(thread[marks].tolist())) & (thread != main_thread)] = code
    return phase


def within_marks(marks: Int64s, start: Int64s, end: Int64s, thread: Int64s) -> npt.NDArray[np.bool_]:
    """Return whether each operation begins within one of the rows `marks` on its thread."""
    inside = np.zeros(len(start), np.bool_)
    for number in sorted(set(thread[marks].tolist())):
        on_thread = marks[thread[marks] == number]
        rows = np.flatnonzero(thread == number)
        inside[rows] = _covered(start[rows], start[on_thread], end[on_thread])
    return inside


def _covered(times: Int64s, begins: Int64s, ends: Int64s) -> npt.NDArray[np.bool_]:
    """Return whether each time lies in the union of the intervals."""
    order = np.argsort(begins, kind="stable")
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    at = np.searchsorted(begins, times, "right") - 1
    # Times before all intervals find the last entry, which no time reaches.
    covered: npt.NDArray[np.bool_] = times < np.append(reach, _BEFORE_ALL).take(at)
    covered |= times == np.append(begins, _BEFORE_ALL).take(at)
    return covered
