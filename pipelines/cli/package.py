"""``weir package``: an archive of Weir and a program for the executors of a Spark cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.pipelines.cli.options import DebugOption, ReferenceArgument
from weir.pipelines.cli.render import console, notices
from weir.pipelines.operations.text import counted, megabytes


def package(
    reference: ReferenceArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", show_default="ID.tar.gz", help="The archive."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="DISTRIBUTION",
            help="What else to pack, with all that it requires: something that the program imports only as it runs; "
            "can be repeated.",
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Pack Weir, a program and what both import into an archive, for the hosts of a Spark cluster that have neither.

    They need the same version of Python, on the same kind of processor. What lies beside the program as files that it
    does not import is packed if its package contains it. Pack again when the program has changed: executors with
    another program than the driver's are refused.
    """
    from weir.pipelines.cli.progress import waiting
    from weir.pipelines.operations.package import packaged

    with waiting("packing", reference) as say:
        written = packaged(reference, output, also=also or (), say=say)
    own = ", ".join(written.own) or "no module"
    notices.print(
        f"{counted(len(written.distributions), 'distribution')}, and {own}, which no distribution has",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"{written.path}: {megabytes(written.size_bytes)}; use it with `weir run {reference} --master URL --archive "
        f"{written.path.name}`",
        markup=False,
        soft_wrap=True,
    )
