"""The files that may be traces under a path. Links to folders are followed, each real folder once."""

import os
import stat
from pathlib import Path
from typing import Final

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.trace.model import KairWarning
from kair_engine.trace.warning_texts import short_warning

_PROFILE: Final = ".xplane.pb"
_COPY: Final = ".trace.json.gz"


@dataclass(frozen=True)
class FoundFiles:
    """Regular files in a stable order, and what could not be looked at."""

    files: tuple[Path, ...]
    warnings: tuple[KairWarning, ...]


def find_files(source: Path) -> FoundFiles:
    """The file `source`, or every file below the folder `source`, hidden ones left out.

    Raises InputError where `source` is missing, is neither, or cannot be read.
    """
    try:
        mode = source.stat().st_mode
    except OSError as error:
        raise _unreachable(source, error) from error
    if stat.S_ISREG(mode):
        return FoundFiles((source,), ())
    if not stat.S_ISDIR(mode):
        raise InputError(f"{source} is neither a file nor a folder")
    try:
        os.scandir(source).close()
    except OSError as error:
        raise _unreachable(source, error) from error
    return _walk(source)


def _unreachable(source: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{source} does not exist", "give a folder of traces, a trace file, or a job of the store")
    return InputError(f"cannot read {source}: {error.strerror or error}")


def _walk(top: Path) -> FoundFiles:
    """Every regular file below `top`. A folder reached twice (a link, a loop of links) is entered once."""
    files: list[Path] = []
    warnings: list[KairWarning] = []
    seen: set[tuple[int, int]] = set()
    folders = [top]
    while folders:
        folder = folders.pop()
        try:
            status = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            text = f"cannot look into the folder {folder}: {error.strerror or error}"
            warnings.append(short_warning("unreadable_file", text))
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        subfolders = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            kind = _kind(entry)
            if kind == "folder":
                subfolders.append(folder / entry.name)
            elif kind == "file":
                files.append(folder / entry.name)
        folders += reversed(subfolders)
    return FoundFiles(tuple(_without_copies(_without_doubles(files))), tuple(warnings))


def _kind(entry: os.DirEntry[str]) -> str | None:
    """`file` or `folder`; None for devices, pipes, and links that lead nowhere."""
    try:
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() else None
    except OSError:
        return None


def _without_doubles(files: list[Path]) -> list[Path]:
    """`files` without links to files that are there themselves."""
    links = {file for file in files if file.is_symlink()}
    if not links:
        return files
    real = {file.resolve() for file in files if file not in links}
    return [file for file in files if file not in links or file.resolve() not in real]


def _without_copies(files: list[Path]) -> list[Path]:
    """`files` without the `NAME.trace.json.gz` that JAX writes beside `NAME.xplane.pb`: the same with less in it."""
    profiles = {str(file).removesuffix(_PROFILE) for file in files if file.name.endswith(_PROFILE)}
    return [file for file in files if not (file.name.endswith(_COPY) and str(file).removesuffix(_COPY) in profiles)]
