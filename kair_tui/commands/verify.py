"""`kair verify`: checks a verdict by its certificate, without the traces."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kair_engine.results.certificate import Certificate
from kair_tui import __version__
from kair_tui.cli.options import Argument
from kair_tui.render.document import SCHEMA_VERSION

if TYPE_CHECKING:
    from kair.app.question import Answer
    from kair.app.session import Session

RENDERER = "kair_tui.render.certificate"


def run(file: Annotated[Path, Argument("The file that kair triage --certificate wrote.")]) -> Certificate:
    """Compute the verdict again from the certificate. Raises InputError if it cannot be read or does not hold."""
    from kair.app.acts.certificate import checked

    return checked(file)


def certificate_of(session: "Session", answer: "Answer") -> bytes:
    """Return the certificate of a triage. Raises UsageError or InputError if there can be none."""
    from kair.app.acts.certificate import certificate

    return certificate(session, answer, {"kair": __version__, "document": SCHEMA_VERSION})
