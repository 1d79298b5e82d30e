"""The base of screens in parts, each under a heading that is lit while it has the keyboard."""

from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.widgets.lines.heading import Heading


class ScreenOfParts(ViewScreen):
    """Says in the status line what is under the cursor of the part that has the keyboard."""

    def describe_cursor(self) -> None:
        """Says it."""
        raise NotImplementedError

    def on_descendant_focus(self) -> None:
        """Another part of the screen has the keyboard."""
        for heading in self.query(Heading):
            heading.light(self.focused is not None and heading.of == self.focused.id)
        self.describe_cursor()
