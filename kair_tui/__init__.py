"""The kair command."""

from typing import Final

__version__: Final = "0.1.0"
"""Stands here because asking the installation for it takes 12 ms."""
