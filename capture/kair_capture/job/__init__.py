"""Runs within the training process: it finds steps and scopes, and writes them into rings."""
