"""Decides what to do about a straggler, and estimates what it saves: pure functions of rates and plans."""
