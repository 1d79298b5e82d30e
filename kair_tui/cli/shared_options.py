"""The options that several analyses have in common."""

import typer

METHOD = typer.Option("--method", help="Robust statistics, or the paper's to the letter.", show_default=True)

RANK = typer.Option("--rank", "-r", metavar="R", help="The rank to look at.", min=0)
