"""The command line: one file a command, no logic in them."""
