"""The command line: one file per command over the Python API."""
