"""Reads pickles of plain values without pickle's loader: numbers, text, lists, tuples and dictionaries.

`pickletools` decodes the opcodes; those that import, call or build anything are unknown here, so that a file with one
of them is refused before any of it is used.
"""

import pickletools
import re
from collections.abc import Iterator
from typing import Any, Final

_MOST_VALUES: Final = 50_000_000
_MARK: Final = object()
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS: Final = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
_VALUES: Final = frozenset((*_NUMBERS, "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"))
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_STORES: Final = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_LOADS: Final = frozenset(("GET", "BINGET", "LONG_BINGET"))
_CUT: Final = re.compile(r"expected \d+ bytes|not enough data|no newline found|exhausted")
"""pickletools' messages about an opcode whose end is missing."""
_WITHOUT_EFFECT: Final = frozenset(("PROTO", "FRAME"))


class NotPlainError(ValueError):
    """The pickle is damaged, or holds other than plain values."""


class CutError(NotPlainError):
    """The pickle ends early; `held` is its content so far, of a dictionary the complete pairs."""

    def __init__(self, held: dict[Any, Any]) -> None:
        super().__init__("it is cut off")
        self.held = held


def load_plain(content: bytes) -> Any:  # noqa: ANN401
    """Return the value that `content` holds.

    Raises NotPlainError, or CutError if it is a dictionary that ends early.
    """
    try:
        return _loaded(content)
    except NotPlainError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise NotPlainError("it is damaged") from error


def _loaded(content: bytes) -> Any:  # noqa: ANN401
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for count, (opcode, argument, _) in enumerate(_opcodes(content)):
        name = opcode.name
        if count > _MOST_VALUES:
            raise NotPlainError("it holds too much")
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _STORES:
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in _LOADS:
            stack.append(memo[argument])
        elif name == "STOP":
            return _only(stack)
        elif name not in _WITHOUT_EFFECT:
            _collect(name, stack)
    held = _held(stack)
    raise CutError(held) if held else NotPlainError("it is cut off")


def _opcodes(content: bytes) -> Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]]:
    """Yield the opcodes up to a truncated one."""
    opcodes = pickletools.genops(content)
    while True:
        try:
            opcode = next(opcodes)
        except StopIteration:
            return
        except ValueError as error:
            if _CUT.search(str(error)):
                return
            raise
        yield opcode


def _held(stack: list[Any]) -> dict[Any, Any]:
    """Return what the dictionary at the bottom would contain, from the stack; nested values likewise.

    Unfilled containers get the items collected for them.
    """
    while len(stack) > 1:
        if not any(one is _MARK for one in stack):
            stack[1:] = [_MARK, *stack[1:]]
        items = _since_mark(stack)
        into = stack[-1] if stack else None
        if isinstance(into, dict):
            into.update(_pairs(items[: len(items) // 2 * 2]))
        elif isinstance(into, list):
            into.extend(items)
    return stack[0] if stack and isinstance(stack[0], dict) else {}


def _collect(name: str, stack: list[Any]) -> None:
    """Execute the opcodes that make lists, tuples and dictionaries from the stack."""
    if name == "MARK":
        stack.append(_MARK)
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name in _TUPLES:
        size = _TUPLES[name]
        if size > len(stack):
            raise NotPlainError("it is damaged")
        stack[len(stack) - size :] = [tuple(stack[len(stack) - size :])]
    elif name in ("TUPLE", "LIST", "DICT"):
        items = _since_mark(stack)
        stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _pairs(items))
    elif name == "APPEND":
        value = stack.pop()
        _of(stack, list).append(value)
    elif name == "APPENDS":
        items = _since_mark(stack)
        _of(stack, list).extend(items)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _of(stack, dict)[key] = value
    elif name == "SETITEMS":
        items = _since_mark(stack)
        _of(stack, dict).update(_pairs(items))
    else:
        raise NotPlainError(f"it holds more than plain values ({name})")


def _of(stack: list[Any], kind: type) -> Any:  # noqa: ANN401
    if type(stack[-1]) is not kind:
        raise NotPlainError("it is damaged")
    return stack[-1]


def _since_mark(stack: list[Any]) -> list[Any]:
    """Pop the values since the last mark, and the mark."""
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise NotPlainError("it is damaged")
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _only(stack: list[Any]) -> Any:  # noqa: ANN401
    if len(stack) != 1 or stack[0] is _MARK:
        raise NotPlainError("it is damaged")
    return stack[0]
