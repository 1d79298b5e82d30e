"""Fault injection into what was recorded: the smallest slowdown that stage 1 would find."""
