"""Stage 3: whose lateness the others waited for, and what made it late."""
