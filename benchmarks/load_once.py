"""Loads one Kineto file with one reader and prints, as JSON, what that took. loading.py runs it, once per process.

Imports are made, and Kair's compiled scan is loaded, before the clock starts. Needs no package but the reader's own, so
that it runs in a peer's environment too.
"""

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from measuring import peak_mb


def kair(file: Path) -> Callable[[], int]:
    """The file as a fragment of the operations table, on disk."""
    reader = import_module("kair_engine.readers.kineto.reader")

    def load() -> int:
        with tempfile.TemporaryDirectory() as folder:
            return int(reader.read_kineto(file, Path(folder, "out.parquet")).operations)

    return load


class _InMemory:
    """Stands in for the file of a fragment: its tables are kept, and nothing is written."""

    def __init__(self, _: Path) -> None:
        self._tables: list[object] = []

    def __enter__(self) -> "_InMemory":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def write(self, table: object) -> None:
        self._tables.append(table)

    def commit(self, _: object) -> None:
        """Nothing is written."""


def kair_tables(file: Path) -> Callable[[], int]:
    """The same as Arrow tables in memory: where the peer stops, which writes nothing."""
    reader = import_module("kair_engine.readers.kineto.reader")
    reader.FragmentWriter = _InMemory
    return kair(file)


def kair_parse(file: Path) -> Callable[[], int]:
    """The file's operations as records in memory, which spill to disk beyond 64 MB."""
    reader = import_module("kair_engine.readers.kineto.reader")

    def load() -> int:
        with tempfile.TemporaryDirectory() as folder, reader._collector_paused():
            spill = reader.RowSpill(Path(folder))
            reader._first_pass(file, spill)
            return int(spill.count)

    return load


def hta(file: Path) -> Callable[[], int]:
    """The file as HolisticTraceAnalysis' DataFrame, in memory, with steps and launches assigned."""
    module = import_module("hta.common.trace")
    logging.disable()

    def load() -> int:
        trace = module.Trace(trace_files={0: str(file)}, trace_dir=str(file.parent))
        trace.parse_traces(max_ranks=1, use_multiprocessing=False)
        return len(trace.get_trace(0))

    return load


def hta_parse(file: Path) -> Callable[[], int]:
    """The same without steps and launches, which take time in proportion to events × steps."""
    module, configuration = import_module("hta.common.trace_parser"), import_module("hta.configs.parser_config")
    logging.disable()

    def load() -> int:
        parsed = module.parse_trace_dataframe(str(file), configuration.ParserConfig.get_default_cfg())
        return len(parsed[1])

    return load


READERS = {
    "kair": (kair, "kair"),
    "kair-tables": (kair_tables, "kair"),
    "kair-parse": (kair_parse, "kair"),
    "hta": (hta, "HolisticTraceAnalysis"),
    "hta-parse": (hta_parse, "HolisticTraceAnalysis"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--decode", action="store_true", help="Kair without its compiled scan")
    options = parser.parse_args()
    prepare, package = READERS[options.reader]
    load = prepare(options.file)
    if package == "kair":
        library = import_module("kair_engine.readers.kineto.compiled.library").library
        if options.decode:
            import_module("kair_engine.readers.kineto.reader").scan_of = lambda _: None
        elif library() is None:
            parser.error("the scan is not compiled: python -m kair_engine.readers.kineto.compiled.build")
    wall, cpu = time.perf_counter(), time.process_time()
    operations = load()
    took = {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "peak_mb": peak_mb(),
        "operations": operations,
        "reader": f"{options.reader} {version(package)}",
    }
    print(json.dumps(took))


if __name__ == "__main__":
    main()
