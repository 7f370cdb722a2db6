"""The entry point of the ``weir`` command."""

from __future__ import annotations

from weir.pipelines.spark.garbage import no_collections


def main() -> None:
    """Run the command that the arguments name. Modules are loaded here, without looking for garbage in them."""
    with no_collections():
        from weir.pipelines.cli.app import main as command
    command()
