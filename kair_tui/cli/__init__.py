"""The command line: the registry of commands, their options, and the processing of arguments to an exit status."""
