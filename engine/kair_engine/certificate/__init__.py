"""A verdict that others can check without the traces: `making` writes it, `verify` checks it."""
