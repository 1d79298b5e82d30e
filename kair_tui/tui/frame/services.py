"""Services of the program to every screen: help, `:`, the palette, and what leaves the screen."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kair_tui.tui.frame.command_line import ask_command
from kair_tui.tui.frame.help import show_help
from kair_tui.tui.frame.noting import ask_note
from kair_tui.tui.frame.palette import show_palette
from kair_tui.tui.frame.saving import ask_export, copy, show_commands, toggle_bookmark, toggle_recording
from kair_tui.tui.frame.screen import BaseScreen, Service

SERVICES: Final[Mapping[Service, Callable[[BaseScreen], Awaitable[None] | None]]] = {
    "help": show_help,
    "command line": ask_command,
    "palette": show_palette,
    "commands": show_commands,
    "copy": copy,
    "export": ask_export,
    "bookmark": toggle_bookmark,
    "note": ask_note,
    "recording": toggle_recording,
}
