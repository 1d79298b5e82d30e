"""Figures drawn in signs: bars, curves and rows of heat."""
