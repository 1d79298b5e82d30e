"""Writes a file that a person named so that it appears whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kair_engine.errors import UnwritableError, UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write: what is written there is moved to `path` at the end, and removed where that is not reached.

    A pipe or device is written to directly.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    final = Path(os.path.realpath(path))
    # Its endings stay: they say whether it is to be compressed.
    temporary = final.with_name(f".{os.getpid()}.{os.urandom(4).hex()}{''.join(final.suffixes[-2:])}")
    try:
        yield temporary
        temporary.replace(final)
    except (UsageError, UnwritableError) as error:
        # Nobody knows the name that is written under.
        error.args = (str(error).replace(str(temporary), str(path)),)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()
