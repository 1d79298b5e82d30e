"""What to do about a straggler, and what it would save: pure functions of rates and plans."""
