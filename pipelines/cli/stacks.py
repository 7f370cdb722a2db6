"""``weir stacks``: shows what every thread of a driver is doing, even if the driver hangs."""

from __future__ import annotations

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, load_settings
from weir.pipelines.cli.render import console
from weir.pipelines.operations.errors import OperationError


def stacks(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Print the stack of every thread of a running application's driver, to see why a run hangs."""
    from weir.infra.control import ControlDatabase
    from weir.pipelines.operations.registry import require
    from weir.pipelines.operations.stacks import dump_stacks

    settings = load_settings(directory)
    life = ControlDatabase(settings.control_database_url).application_status(require(settings, application))
    if life is None:
        raise OperationError(f"{application} has not run in {settings.dir} yet")
    console.print(dump_stacks(settings, life), markup=False, soft_wrap=True)
