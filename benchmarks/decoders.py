"""What JSON libraries take for the events of a Kineto file: is there a faster way to read without a scan of our own?

    python benchmarks/decoders.py FILE.json [--runs 5]

`msgspec, typed` makes the objects that Kair reads where its scan is not compiled; `msgspec, skipped` parses the same
text and makes none: no library of this kind takes less. `simdjson, fields` reads the same fields of each event from its
parsed text. Libraries that are not installed are left out. CPU seconds, the best of the runs; all take turns.
"""

import argparse
import gc
import io
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import msgspec
from measuring import report, say

from kair_engine.readers.kineto.events import Event, EventArgs

_FIELDS = [field.encode_name for field in msgspec.structs.fields(Event) if field.name != "args"]
_ARGUMENTS = [field.encode_name for field in msgspec.structs.fields(EventArgs)]


class _Nothing(msgspec.Struct):
    """An event of which no field is kept."""


class _Typed(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")


class _Skipped(msgspec.Struct):
    events: list[_Nothing] = msgspec.field(name="traceEvents")


def ways(text: bytes) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each way to decode `text`, with its name."""
    yield "msgspec, typed", lambda: msgspec.json.decode(text, type=_Typed)
    yield "msgspec, skipped", lambda: msgspec.json.decode(text, type=_Skipped)
    if find_spec("orjson"):
        yield "orjson", lambda: import_module("orjson").loads(text)
    if find_spec("simdjson"):
        yield "simdjson, parsed", lambda: import_module("simdjson").Parser().parse(text)
        yield "simdjson, fields", lambda: _read_fields(text)
    if find_spec("polars"):
        yield "polars", lambda: import_module("polars").read_json(io.BytesIO(text))
    yield "json", lambda: import_module("json").loads(text)


def _read_fields(text: bytes) -> int:
    read = 0
    for event in import_module("simdjson").Parser().parse(text)["traceEvents"]:
        values = [event.get(name) for name in _FIELDS]
        arguments = event.get("args")
        if arguments is not None:
            values += [arguments.get(name) for name in _ARGUMENTS]
        read += len(values)
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a Kineto trace, .json (make_large_trace.py makes one)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    text = options.file.read_bytes()
    gc.disable()
    took: dict[str, float] = {}
    for number in range(options.runs):
        for name, decode in ways(text):
            begin = time.process_time()
            decode()
            took[name] = min(took.get(name, float("inf")), time.process_time() - begin)
            say(f"{number + 1}: {name}: {took[name]:.2f} s")
    rows = [{"way": name, "CPU s": s, "MB/s": len(text) / 1e6 / s} for name, s in took.items()]
    report("decoding Kineto events", rows, as_json=options.json)


if __name__ == "__main__":
    main()
