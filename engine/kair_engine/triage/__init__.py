"""The whole investigation: from the three stages to findings with evidence, prices and advice."""
