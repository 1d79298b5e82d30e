"""Redraws a widget when the keyboard comes or goes: cursors are drawn where it is."""

from textual.widget import Widget


class RefreshedByFocus(Widget):
    """A base that stands after the widget's own: its CSS comes from the first."""

    def on_focus(self) -> None:
        """The cursor is drawn where the keyboard is."""
        self.refresh()

    def on_blur(self) -> None:
        """The cursor is drawn where the keyboard is."""
        self.refresh()
