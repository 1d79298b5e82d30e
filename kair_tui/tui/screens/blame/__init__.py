"""The blame screen and its parts."""
