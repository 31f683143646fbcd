"""The laboratory on the command line."""
