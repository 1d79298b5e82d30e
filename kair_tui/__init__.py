"""The kair command."""

__version__ = "0.1.0"
"""Stands here because asking the installation for it takes 12 ms."""
