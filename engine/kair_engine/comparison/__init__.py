"""Two runs compared: what changed, on whom, and what that costs."""
