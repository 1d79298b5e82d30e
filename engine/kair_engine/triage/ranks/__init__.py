"""Finds which ranks are to blame beyond what stage 1 found, and why."""
