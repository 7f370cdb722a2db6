"""The ``weir`` command line: each module holds related commands, and ``app`` assembles them."""

from weir.pipelines.cli.entry import main

__all__ = ["main"]
