"""Compiles the scan of Kineto traces with the C compiler of this machine.

`python -m kair_engine.readers.kineto.compiled.build` does so in place, as for an installation from a checkout.
"""

import os
import sys
import zlib
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("scan.c")
LIBRARY: Final = Path(__file__).with_name("libscan.so")
WITHOUT: Final = "Kineto traces will be decoded, at a third of the speed"
FLAGS: Final = ("-std=gnu11", "-O3", "-s", "-shared", "-fPIC", "-Wall", "-Wextra")


def checksum(source: Path = SOURCE) -> int:
    """Return the checksum of the source, which a library that is compiled from it carries."""
    return zlib.crc32(source.read_bytes())


def compiler(target: str | None = None) -> list[str] | None:
    """Return the compiler's command: CC, cc, gcc or clang; zig's for another platform (x86_64-linux-gnu.2.17)."""
    if target is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", target]
    import shlex
    import shutil

    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        command = shlex.split(name)
        if command and shutil.which(command[0]):
            return command
    return None


def build(library: Path = LIBRARY, *, target: str | None = None, flags: tuple[str, ...] = FLAGS) -> str | None:
    """Compile the source into `library`; return why that failed, None if it succeeded."""
    import subprocess

    command = compiler(target)
    if command is None:
        return "there is no C compiler"
    made = library.with_name(f".{library.name}.{os.getpid()}")
    given = [*command, *flags, f"-DKAIR_CHECKSUM={checksum()}u", "-o", str(made), str(SOURCE)]
    try:
        ran = subprocess.run(given, capture_output=True, text=True, errors="replace", check=False)
        if ran.returncode:
            return f"{command[0]} failed: {ran.stderr.strip()}"
        made.replace(library)
    except OSError as error:
        return f"{command[0]} failed: {error}"
    finally:
        made.unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    if failed := build():
        print(f"{WITHOUT}: {failed}", file=sys.stderr)
