"""Reads PyTorch profiler (Kineto) traces."""
