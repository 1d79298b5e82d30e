"""Descriptions that accuse nobody: an inventory, one rank beside its peers, the time-frequency view."""
