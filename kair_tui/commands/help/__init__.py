"""For people: the words that the answers use, and what a command does."""
