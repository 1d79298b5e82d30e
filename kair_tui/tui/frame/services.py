"""Services of the program to every screen: help, `:`, the palette, copies and exports.

Also bookmarks, the commands behind a screen and their recording, and notes on the thing under the cursor: written with
N, found again in the palette, and saved as text.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Final

from kair.app.notes import Bookmark
from kair.app.places import cache_root
from kair.app.question import Note
from kair_engine.errors import KairError, UsageError
from kair_engine.trace.files import atomic_write, make_folder, write_whole
from kair_tui.tui.frame.command_line import Choice, ask_command, show_choices, show_palette, show_ticket
from kair_tui.tui.frame.output import OutputScreen, show_help
from kair_tui.tui.frame.screen import BaseScreen, Service
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.session import Session
from kair_tui.tui.widgets.styles import styles_of

_COPIED = "copied.txt"
_NAMES_TRIED = 1000


def show_commands(screen: BaseScreen) -> None:
    """Show the command lines that print the screen's content in a shell."""
    commands = screen.commands()
    if not commands:
        screen.say("no command prints this", alarm=True)
        return
    styles = styles_of(screen.look)
    lines = [("these print the same in a shell (y copies them):", styles.dim), ("", styles.base)]
    page = OutputScreen("commands", [*lines, *((command, styles.base) for command in commands)], commands)
    page.copied = lambda: "\n".join(commands)  # type: ignore[method-assign]
    screen.app.push_screen(page)


def copy(screen: BaseScreen) -> None:
    """Copy to the terminal's clipboard (OSC 52), and to a file for terminals without one."""
    text = screen.copied()
    if not text:
        screen.say("nothing to copy here", alarm=True)
        return
    screen.app.copy_to_clipboard(text)
    file = cache_root() / _COPIED
    try:
        make_folder(file.parent)
        write_whole(file, f"{text}\n".encode(errors="backslashreplace"))
    except OSError as error:
        screen.say(f"copied to the clipboard alone: {file}: {error.strerror or error}")
        return
    screen.say(f"copied to the clipboard and to {file}")


def toggle_bookmark(screen: BaseScreen) -> None:
    """Set a bookmark on the place, or remove it."""
    session = screen.kair.session
    if session is None or not isinstance(screen, ViewScreen):
        screen.say("bookmarks are for the views of a job", alarm=True)
        return
    steps, place = screen.session.steps, screen.place_under_cursor
    name = screen.crumb if place == screen.place else f"{place.screen} {place.rank}"
    title = name + (f" steps {','.join(map(str, steps))}" if steps else "")
    try:
        is_set = session.bookmarks.toggle(Bookmark(title=title, steps=steps, **asdict(place)))
    except OSError as error:
        screen.say(f"cannot write {session.bookmarks.file}: {error.strerror or error}", alarm=True)
        return
    screen.say(f"bookmark {'set' if is_set else 'removed'}: {title} (ctrl+p lists them)")


async def toggle_recording(screen: BaseScreen) -> None:
    """Ask for a file and start recording to it; or stop."""
    session = screen.kair.session
    if session is None:
        return
    if (done := session.recorder.stop()) is not None:
        screen.say(f"recorded to {done}")
        screen.show_header()
        return
    await screen.ask_for("record to", partial(_record, screen), value=str(_free_name(f"{_stem(session.name)}.kair")))


def _record(screen: BaseScreen, name: str) -> None:
    session = screen.kair.session
    assert session is not None

    def start() -> None:
        session.recorder.start(Path(name).expanduser(), session.name)
        for command in screen.commands():
            session.recorder.add(command)

    if _tried(screen, name, start):
        screen.say(f"recording to {name} until R is pressed again")
        screen.show_header()


async def ask_export(screen: BaseScreen) -> None:
    """Ask for a format, then for a file."""
    choices = [
        Choice(
            "svg",
            "the screen as a picture",
            partial(_ask_where, screen, "svg", lambda: screen.app.export_screenshot(title=f"kair {screen.crumb}")),
        )
    ]
    for export in screen.exports():
        choices += [
            Choice(
                f"{form}  {export.command}",
                f"what {export.line} -o {form} prints",
                partial(_ask_name, screen, form, partial(_save, screen, partial(export.save, form)), export.name),
            )
            for form in export.forms
        ]
    session = screen.kair.session
    if session is not None and session.known(session.question("triage")) is not None:
        choices += [
            Choice(
                f"{form}  report",
                "all that was found, with its pictures, to read and to pass on",
                partial(_ask_name, screen, form, partial(_save_report, screen), "report"),
            )
            for form in ("html", "md")
        ]
    if session is not None and session.notes.all():
        notes = partial(notes_as_text, session)
        choices.append(
            Choice("md  notes", "what was noted of the job", partial(_ask_where, screen, "md", notes, "notes"))
        )
    if not screen.exports():
        choices.append(Choice("txt", "the text", partial(_ask_where, screen, "txt", screen.copied)))
    await show_choices(screen, "export", choices)


def _ask_where(screen: BaseScreen, ending: str, content: Callable[[], str], name: str | None = None) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(content().encode())

    _ask_name(screen, ending, partial(_save, screen, write), name or screen.crumb)


def _ask_name(screen: BaseScreen, ending: str, save: Callable[[str], None], name: str) -> None:
    session = screen.kair.session
    job = _stem(session.name) if session is not None else "kair"
    proposed = _free_name(f"{job}-{_stem(name)}.{ending}")
    # The picture is of the screen, not of the list of formats that is just closing.
    screen.call_after_refresh(lambda: screen.ask_for("save to", save, value=str(proposed)))


def _save_report(screen: BaseScreen, name: str) -> None:
    """Make the report in a thread, because it asks more than a triage does."""
    session = screen.kair.session
    assert session is not None
    app = screen.app

    def make() -> None:
        app.call_from_thread(report, _tried_saying(name, lambda: _write_report(session, name)))

    def report(wrong: str | None) -> None:
        screen.say(wrong or f"saved {name}", alarm=wrong is not None)

    screen.say(f"making the report {screen.look.glyphs.ellipsis}")
    screen.kair.in_thread(screen, make, group="report")


def _write_report(session: Session, name: str) -> None:
    """Write the report of `kair triage --report` to a new file. Raises KairError."""
    from kair_tui.cli.asking import Asker
    from kair_tui.commands.report_file import require_form, write_report
    from kair_tui.commands.triage_report import report_of

    path = Path(name).expanduser()
    require_form(path)
    if path.exists():
        raise UsageError(f"{name} exists already", "choose another name")
    answer = session.ask(session.question("triage"))
    write_report(path, report_of(Asker(session, session.steps), answer.result, session.gpu_cost))


def _save(screen: BaseScreen, write_to: Callable[[IO[bytes]], None], name: str) -> None:
    def write() -> None:
        try:
            with atomic_write(Path(name).expanduser(), replace=False) as file:
                write_to(file)
        except FileExistsError:
            raise UsageError(f"{name} exists already", "choose another name") from None

    def save() -> None:
        if _tried(screen, name, write):
            screen.say(f"saved {name}")

    # After a refresh: the picture must not show the input line.
    screen.call_after_refresh(save)


def _tried(screen: BaseScreen, name: str, do: Callable[[], None]) -> bool:
    """Return whether it worked; an error is shown."""
    wrong = _tried_saying(name, do)
    if wrong is not None:
        screen.say(wrong, alarm=True)
    return wrong is None


def _tried_saying(name: str, do: Callable[[], None]) -> str | None:
    """Return the error's text; None if it worked."""
    try:
        do()
    except KairError as error:
        return f"{error}" + (f": {error.hint}" if error.hint else "")
    except OSError as error:
        return f"cannot write {name}: {error.strerror or error}"
    return None


def _stem(name: str) -> str:
    """Return a name that is valid in a file's name: names of jobs can be anything."""
    return (
        "".join(sign if (sign.isalnum() and sign.isascii()) or sign in "._" else "-" for sign in name).strip("-.")
        or "kair"
    )


def _free_name(name: str) -> Path:
    """Return `name` in the current folder, with a number if the file exists."""
    path = Path(name)
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in range(2, _NAMES_TRIED))
    return next((one for one in (path, *numbered) if not one.exists()), path)


async def ask_note(screen: BaseScreen) -> None:
    """Ask for a note's text, starting with the present one."""
    session = screen.kair.session
    if session is None or not isinstance(screen, ViewScreen):
        screen.say("notes are for the views of a job", alarm=True)
        return
    # The place at this time: the cursor may move while the text is typed.
    place = screen.place_under_cursor
    # Without figures if possible: they change when the job is read again, while the note stays.
    about = f"{place.screen} {place.rank}" if place != screen.place else screen.described or screen.crumb

    def write(text: str) -> None:
        note = Note(
            text=text.strip(),
            about=about,
            written_at=datetime.now(UTC).isoformat(timespec="seconds"),
            steps=session.steps,
            **asdict(place),
        )
        before = session.notes.on(about, place.screen)
        try:
            session.notes.write(note)
        except OSError as error:
            screen.say(f"cannot write {session.notes.file}: {error.strerror or error}", alarm=True)
            return
        if note.text or before:
            screen.say(f"noted on {about} (ctrl+p lists notes)" if note.text else f"no note on {about} any more")

    await screen.ask_for("note", write, value=session.notes.on(about, place.screen))


def notes_as_text(session: Session) -> str:
    """Return all notes of the job as Markdown; names from traces are escaped."""
    from kair_tui.render.report.markdown import safe_text

    lines = [f"# Notes on {safe_text(session.name)}", ""]
    for note in session.notes.all():
        lines += [f"- {safe_text(note.text)}", f"  ({safe_text(note.about)}; {safe_text(note.written_at)})"]
    return "\n".join(lines) + "\n"


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
    "ticket": show_ticket,
}
