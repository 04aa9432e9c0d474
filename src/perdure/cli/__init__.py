"""The command line: `perdure`."""

from perdure.cli.program import main

__all__ = ["main"]
