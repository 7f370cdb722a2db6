"""The ``weir`` command line: each module holds the commands of one kind, ``app`` puts them together."""

from weir.pipelines.cli.app import main

__all__ = ["main"]
