"""Notes on what is under the cursor: written with N, found again in the palette, and saved as text."""

from dataclasses import asdict
from datetime import UTC, datetime

from kair_tui.render.answer import Note
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.session import Session


async def ask_note(screen: BaseScreen) -> None:
    """Asks for the text, beginning with what is noted on it already."""
    session = screen.kair.session
    if session is None or not isinstance(screen, ViewScreen):
        screen.say("notes are for the views of a job", alarm=True)
        return
    # What is under the cursor now: it may be another thing once the text is typed.
    place = screen.place_under_cursor
    # Without figures where it can be: they change when the job is read again, and the note is on the same.
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
    """All notes of the job, as Markdown; names in it, which are the traces', are text."""
    from kair_tui.render.report.markdown import safe_text

    lines = [f"# Notes on {safe_text(session.name)}", ""]
    for note in session.notes.all():
        lines += [f"- {safe_text(note.text)}", f"  ({safe_text(note.about)}; {safe_text(note.written_at)})"]
    return "\n".join(lines) + "\n"
