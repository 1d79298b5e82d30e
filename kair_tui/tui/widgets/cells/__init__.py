"""Widgets of cells: grids, heat maps and matrices."""
