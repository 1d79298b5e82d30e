"""`kair spec`: the commands, for machines."""


def run() -> str:
    """The description of every command, as one JSON document."""
    from kair_tui.cli.description import describe

    return describe()
