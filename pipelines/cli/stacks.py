"""``weir stacks``: what every thread of an application's driver is doing, asked of a driver that may hang."""

from __future__ import annotations

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, load_settings
from weir.pipelines.cli.render import console
from weir.pipelines.operations.errors import OperationError


def stacks(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Print what every thread of a running application's driver is doing, for a run that hangs."""
    from weir.infra.control import ControlDatabase
    from weir.pipelines.operations.registry import require
    from weir.pipelines.operations.stacks import dump_stacks

    settings = load_settings(directory)
    life = ControlDatabase(settings.control_database_url).application_status(require(settings, application))
    if life is None:
        raise OperationError(f"{application} has not run in {settings.dir} yet")
    console.print(dump_stacks(settings, life), markup=False, soft_wrap=True)
