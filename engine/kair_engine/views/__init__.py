"""Descriptions that accuse nobody: an inventory, one rank compared with its peers, the time-frequency view."""
