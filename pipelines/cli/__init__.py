"""The ``weir`` command line: each module holds related commands, and ``app`` assembles them."""

from weir.pipelines.spark.garbage import no_collections


def main() -> None:
    """The entry point of the ``weir`` command."""
    with no_collections():
        from weir.pipelines.cli.app import main as command
    command()
