"""Watches a running training job at next to no cost."""
