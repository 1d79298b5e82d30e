"""Damages recordings within their format, so that readers get past its outside: JSON, pickles, SQLite, protobuf."""

import gzip
import json
import pickle
import random
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from fuzz import damage
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from support.xplane_builder import varint

from kair_engine.readers.plain_pickle import NotPlainError, load_plain

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_TIMES = (1, 3, 10, 50)
_DEEPEST = 12
_NUMBERS = tuple(number for number in damage.NUMBERS if isinstance(number, int))
_LARGEST = 8 << 20
"""Of a damaged message, in bytes: some of them double what doubles."""


def structured(data: bytes, chance: random.Random) -> bytes | None:
    """The same kind of file with values, fields, rows or columns changed in it; None for what is of no known kind."""
    if data.startswith(b"\x1f\x8b"):
        inner = structured(gzip.decompress(data), chance)
        return None if inner is None else gzip.compress(inner, 1)
    if data.startswith(b"SQLite format 3\0"):
        return _database(data, chance)
    if data.startswith(b"\x80"):
        with suppress(NotPlainError):
            return _pickled(damage.tree(load_plain(data), chance, chance.choice(_TIMES)))
    for text in (data, data.rstrip(b", \n") + b"]"):  # a list that was never closed, as Horovod leaves it
        with suppress(ValueError):
            changed = damage.tree(json.loads(text), chance, chance.choice(_TIMES))
            return json.dumps(changed).encode("utf-8", "surrogatepass")
    return _message_changed(data, chance)


def _pickled(root: Any) -> bytes | None:  # noqa: ANN401  (a tree as JSON has it)
    try:
        return pickle.dumps(root, protocol=2)
    except UnicodeEncodeError:  # half a surrogate, which no writer could have written
        return None


@dataclass
class Field:
    """A field of a message: its number, wire type, and a number, bytes, or the fields of a nested message."""

    number: int
    kind: int
    value: "int | bytes | list[Field]"


def _message_changed(data: bytes, chance: random.Random) -> bytes | None:
    root = _message(data, 0)
    if root is None:
        return None
    for _ in range(chance.choice(_TIMES)):
        _change(root, chance)
    return _written(root)[:_LARGEST]


def _message(data: bytes, depth: int) -> "list[Field] | None":
    """The fields of a message, nested as far as what they hold can be read as a message; else None."""
    found: list[Field] = []
    try:
        for field in UnknownFieldSet(Empty.FromString(data)):
            value: int | bytes | list[Field] | None = field.data
            if isinstance(value, bytes):
                value = _message(value, depth + 1) if value and depth < _DEEPEST else None
                value = field.data if value is None else value
            elif not isinstance(value, int):
                return None
            found.append(Field(field.field_number, field.wire_type, value))
    except DecodeError:
        return None
    return found


def _change(root: "list[Field]", chance: random.Random) -> None:
    """One field of any depth changed, removed, doubled, or put where none was expected."""
    holder = root
    while holder:
        at = chance.randrange(len(holder))
        field = holder[at]
        if not isinstance(field.value, list) or not field.value or chance.random() < 0.15:
            break
        holder = field.value
    else:
        return
    deed = chance.randrange(8)
    if deed < 3:
        field.value = _another(field, chance)
    elif deed == 3:
        del holder[at]
    elif deed == 4:
        holder[at:at] = [field] * chance.choice((1, 1, 2, 100))
    elif deed == 5:
        field.number = chance.choice((1, 2, 3, 4, 5, 6, 7, 15, 16, 2047, (1 << 29) - 1, field.number + 1))
    elif deed == 6:
        chance.shuffle(holder)
    else:
        other = chance.choice(root)
        inside = _written(other.value) if isinstance(other.value, list) else other.value
        holder.insert(chance.randrange(len(holder) + 1), Field(other.number, other.kind, inside))


def _another(field: Field, chance: random.Random) -> "int | bytes | list[Field]":
    """A value of the same wire type that is off."""
    if field.kind != _BYTES:
        assert isinstance(field.value, int)
        off = damage.near(field.value, chance)
        return int(off) if isinstance(off, int | float) and abs(off) < 1 << 70 else chance.choice(_NUMBERS)
    if isinstance(field.value, list) and chance.random() < 0.5:
        return b""
    text = chance.choice(damage.TEXTS).encode("utf-8", "surrogatepass")
    old = field.value if isinstance(field.value, bytes) else b""
    return chance.choice((text, old + text, old[: len(old) // 2], chance.randbytes(9), chance.randbytes(300)))


def _written(fields: "list[Field]") -> bytes:
    parts: list[bytes] = []
    size = 0
    for field in fields:
        part = _key_and_value(field)
        size += len(part)
        if size > _LARGEST:
            break
        parts.append(part)
    return b"".join(parts)


def _key_and_value(field: Field) -> bytes:
    key = varint(field.number << 3 | field.kind)
    if isinstance(field.value, int):
        if field.kind == _VARINT:
            return key + varint(field.value)
        width = 8 if field.kind == _FIXED64 else 4
        return key + (field.value & (1 << 8 * width) - 1).to_bytes(width, "little")
    content = _written(field.value) if isinstance(field.value, list) else field.value
    return key + varint(len(content)) + content


def _database(data: bytes, chance: random.Random) -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(data)
        for _ in range(chance.choice(_TIMES)):
            names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if names:
                with suppress(sqlite3.Error):  # a change that this table does not take
                    _change_table(database, chance.choice(names), chance)
        database.commit()
        return database.serialize()


def _change_table(database: sqlite3.Connection, table: str, chance: random.Random) -> None:
    """Values of a column changed, rows lost or doubled, or a column or the table removed or renamed."""
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    column = chance.choice(columns)
    some = chance.choice(("random() % 50 = 0", "random() % 2 = 0", "1"))
    deed = chance.randrange(10)
    if deed < 5:
        new = _storable(damage.value(chance))
        database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', (new,))
    elif deed < 7:
        step = chance.choice((-1, 1, 1000, -(10**12), 1 << 62))
        database.execute(f'UPDATE "{table}" SET "{column}" = "{column}" + ? WHERE {some}', (step,))
    elif deed == 7:
        database.execute(f'DELETE FROM "{table}" WHERE {some}')
    elif deed == 8:
        database.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE {some}')
    else:
        statements = (
            f'DROP TABLE "{table}"',
            f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
            f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "another"',
            f'ALTER TABLE "{table}" RENAME TO "{table}_2"',
        )
        database.execute(chance.choice(statements))


def _storable(value: Any) -> "int | float | str | bytes | None":  # noqa: ANN401  (any value of JSON)
    """As SQLite stores it."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass") if "\ud800" in value else value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else float(value)
    return value if isinstance(value, float) or value is None else json.dumps(value).encode()
