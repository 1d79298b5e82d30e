"""`kair mcp`: offers the commands that only read, to programs that speak the Model Context Protocol."""

import os
from pathlib import Path
from typing import Annotated

from kair_engine.errors import UsageError
from kair_tui.cli.options import Option


def run(
    store: Path,
    *,
    root: Annotated[
        Path | None,
        Option(
            "--root",
            "Read traces and evidence only below this folder, at which relative paths start. "
            "Default: whatever the user who runs it may read.",
            metavar="DIR",
        ),
    ] = None,
) -> int:
    """Answer on stdin and stdout until stdin ends. Raises UsageError if the library or the folder is missing."""
    try:
        from kair_tui.commands.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("anyio", "mcp", "mcp_types"):
            raise UsageError("kair mcp needs the package mcp", "pip install 'kair[mcp]'") from error
        raise
    if root is not None and not (root.is_dir() and os.access(root, os.R_OK | os.X_OK)):
        raise UsageError(f"--root {root} is no folder that can be read")
    return serve(store.absolute(), None if root is None else root.resolve())
