"""Damages inputs: hostile values, JSON trees, bytes and tables, each drawn from a generator of chances."""

import os
import random
import stat
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

Tree = Any
"""A value as JSON has it."""

TEXTS = (
    "",
    " ",
    "\x1b[2J\x1b]0;owned\x07",
    "a\nb\r\t\0\x08",
    "\u202egnp.exe\u2066",
    "\x85\x9b31m\u2028",
    "[red]evil[/red]",
    "[bold",
    "\ud800",
    "日本語 · ✓",
    "a" * 3000,
    "9" * 5000,
    "}, {" * 400,
    "../../etc/passwd",
    "%s%n{0}",
    '"quoted", <b>&amp;',
    "=1+1",
    "ProfilerStep#7",
    "ProfilerStep#999999999",
    "Optimizer.step#SGD.step",
    "gloo:all_reduce",
    "gloo:send",
    "c10d::allreduce_",
    "record_param_comms",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "ncclDevKernel_SendRecv",
    "cudaDeviceSynchronize",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "python_gc",
)
NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 53) + 1,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 64,
    1 << 70,
    10**30,
    0.5,
    -0.0,
    1e-9,
    1e15,
    1e18,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
)
OTHERS: tuple[Tree, ...] = (None, True, False, [], {}, [1, [2, [3]]], {"a": {"b": None}}, "12", "-3", "1.5", "0x10")


OTHER_KINDS = ("pipe", "device", "socket", "folder", "link")
"""What may stand in a file's place."""


def value(chance: random.Random) -> Tree:
    """A value that nobody expects."""
    return deepcopy(chance.choice(chance.choice((TEXTS, NUMBERS, NUMBERS, OTHERS))))


def near(old: Tree, chance: random.Random) -> Tree:
    """A value of the same type that is off: more likely to be believed than any."""
    if isinstance(old, bool) or old is None:
        return not old
    if isinstance(old, int | float):
        steps: Sequence[Callable[[], Tree]] = (
            lambda: old + chance.choice((-1, 1, 1000, -1000)),
            lambda: old * chance.choice((-1, 0, 2, 1000, 1e6)),
            lambda: chance.choice(NUMBERS),
            lambda: f"{old}" if abs(old) < 1e300 else "12",
        )
        return chance.choice(steps)()
    if isinstance(old, str):
        at = chance.randrange(len(old) + 1)
        return chance.choice((old[:at], old[:at] + chance.choice(TEXTS) + old[at:], old.upper(), chance.choice(TEXTS)))
    if isinstance(old, list):
        return chance.choice((old[: len(old) // 2], old + old, old[::-1], [*old, value(chance)]))
    return value(chance)


def tree(root: Tree, chance: random.Random, times: int = 1) -> Tree:
    """The tree with values, keys and items changed, removed or doubled in it; in place where it can be."""
    holder = [root]
    for _ in range(times):
        at, key = _place(holder, chance)
        deed = chance.random()
        if deed < 0.35:
            at[key] = value(chance)
        elif deed < 0.7:
            at[key] = near(at[key], chance)
        elif at is holder:
            continue
        elif deed < 0.85:
            del at[key]
        elif isinstance(at, list):
            at.insert(chance.randrange(len(at) + 1), at[key])
        else:
            at[chance.choice(TEXTS)] = at[key]
    return holder[0]


def _place(holder: list[Tree], chance: random.Random) -> tuple[Tree, Any]:
    """A container and a place in it, of any depth; the deeper ones as likely as those at the top."""
    at, key = holder, 0
    while isinstance(inner := at[key], list | dict) and inner and chance.random() < 0.8:
        at = inner
        key = chance.choice(list(inner)) if isinstance(inner, dict) else chance.randrange(len(inner))
    return at, key


def content(data: bytes, chance: random.Random, times: int = 1) -> bytes:
    """The bytes with some of them changed, lost, doubled or put elsewhere, or their end cut off."""
    for _ in range(times):
        if not data:
            return chance.randbytes(40)
        at, size = chance.randrange(len(data)), int(chance.paretovariate(0.5)) % 2000
        deed = chance.randrange(7)
        if deed == 0:
            data = data[:at]
        elif deed == 1:
            data = data[:at] + chance.randbytes(1 + size % 8) + data[at + 1 + size % 8 :]
        elif deed == 2:
            data = data[:at] + data[at + size :]
        elif deed == 3:
            data = data[: at + size] + data[at:]
        elif deed == 4:
            data = data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
        elif deed == 5:
            other = chance.randrange(len(data))
            data = data[:at] + data[other : other + size] + data[at:]
        else:
            token = chance.choice((b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\0", b"\xff", b"NaN", b"1e999"))
            data = data[:at] + token * (1 + size % 50) + data[at:]
    return data


def table(rows: pa.Table, chance: random.Random, times: int = 1) -> pa.Table:
    """The table with values changed, or columns or rows lost, doubled, of another type or in another order."""
    for _ in range(times):
        if not rows.num_columns:
            return rows
        at = chance.randrange(rows.num_columns)
        name, column = rows.column_names[at], rows.column(at)
        deed = chance.randrange(10)
        if deed == 0:
            rows = rows.remove_column(at)
        elif deed == 1:
            rows = rows.slice(chance.randrange(rows.num_rows + 1), chance.randrange(rows.num_rows + 1))
        elif deed == 2:
            rows = pa.concat_tables([rows, rows.slice(0, chance.randrange(rows.num_rows + 1))])
        elif deed == 3:
            order = list(range(rows.num_rows))
            chance.shuffle(order)
            rows = rows.take(pa.array(order, pa.int64()))
        elif deed == 4:
            rows = rows.set_column(at, name, pa.nulls(rows.num_rows, column.type))
        else:
            rows = rows.set_column(at, name, _column(column, chance))
    return rows


def _column(column: pa.ChunkedArray, chance: random.Random) -> pa.Array:
    """Another column of as many rows: single values changed, where they fit its type, else of another type."""
    values = column.to_pylist()
    kind: pa.DataType | None = column.type
    share = chance.choice((0.02, 0.3, 1.0))
    for at in range(len(values)):
        if chance.random() < share:
            values[at] = chance.choice((value, lambda one: near(values[at], one)))(chance)  # noqa: B023
    if chance.random() < 0.3:
        kind = chance.choice((pa.string(), pa.float32(), pa.int64(), pa.bool_(), pa.int8()))
    return pa.array([_fitting(one, kind) for one in values], kind)


def _fitting(one: Tree, kind: pa.DataType | None) -> Tree:
    """The value, where an array of that type can hold it; else the type's own oddest one."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if one is None:
        return None
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        known = isinstance(one, int | float) and one == one and abs(one) < 1e300  # noqa: PLR0124  (NaN)
        return int(min(max(one, int(limits.min)), int(limits.max))) if known else int(limits.min)
    if pa.types.is_floating(kind):
        return float(one) if isinstance(one, float) or (isinstance(one, int) and abs(one) < 1 << 70) else float("nan")
    if pa.types.is_boolean(kind):
        return bool(one)
    return (one if isinstance(one, str) else "other").encode("utf-8", "replace").decode()


def other_kind(path: Path, chance: random.Random, kinds: Sequence[str] = OTHER_KINDS) -> None:
    """Something else in a file's place."""
    path.unlink(missing_ok=True)
    kind = chance.choice(kinds)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name)
