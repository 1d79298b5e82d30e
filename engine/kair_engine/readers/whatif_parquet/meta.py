"""The metadata beside a what-if trace: `meta-X.yaml` for `trace-X.parquet`, flat `key: value` lines."""

from pathlib import Path
from typing import Final

from kair_engine.readers.identity import MAX_RANKS
from kair_engine.trace.permissions import read_kept

SIZE_KEYS: Final = ("dp_size", "pp_size", "tp_size", "dsp_size", "world_size")
_MAX_LENGTH: Final = 64 << 10
_DIGITS: Final = 10


def metadata_files(source: Path) -> tuple[Path, ...]:
    """The file named after the trace, else every YAML file beside it, in order."""
    named = source.with_name(f"meta-{source.stem.removeprefix('trace-')}.yaml")
    candidates = [named] if named.is_file() else sorted([*source.parent.glob("*.yaml"), *source.parent.glob("*.yml")])
    return tuple(path for path in candidates if path.is_file() and path.stat().st_size <= _MAX_LENGTH)


def read_sizes(source: Path) -> dict[str, int]:
    """The sizes that the metadata of `source` states; empty where there is none, or it is unclear which."""
    found = [sizes for path in metadata_files(source) if (sizes := parse_sizes(path))]
    return found[0] if len(found) == 1 else {}


def parse_sizes(path: Path) -> dict[str, int]:
    """The known `key: integer` lines of a flat YAML file; others are passed over."""
    try:
        text = read_kept(path, _MAX_LENGTH).decode("utf-8", "replace")
    except OSError:
        return {}
    sizes = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        value = value.partition("#")[0].strip()
        if (
            key.strip() in SIZE_KEYS
            and value.isdecimal()
            and 0 < int(value[-_DIGITS:]) <= MAX_RANKS
            and len(value) <= _DIGITS
        ):
            sizes[key.strip()] = int(value)
    return sizes
