"""The command line: the registry of commands, their options, and the way from arguments to an exit status."""
