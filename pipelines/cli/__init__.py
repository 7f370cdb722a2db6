"""The ``weir`` command line: each module holds related commands, and ``app`` assembles them."""

from weir.pipelines.cli.app import main

__all__ = ["main"]
