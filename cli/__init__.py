"""The command line: one click command per module; parse, call, print."""
