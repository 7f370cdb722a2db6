"""Deletes an application's state and tables, so that its next run starts from the beginning."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.operations.at_rest import at_rest
from weir.pipelines.operations.registry import forget, require
from weir.state.engine.in_memory import free
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at


def folders(settings: Settings, application: str) -> tuple[Path, Folder]:
    """The folders that a reset deletes: the application's state and its tables.

    Raises:
        OperationError: The folder does not know the application.
    """
    require(settings, application)
    return settings.state_dir / application, folder_at(settings.warehouse) / application


def reset(settings: Settings, application: str) -> None:
    """Delete the application's state and tables and forget the application; its topics stay as they are.

    Raises:
        OperationError: The folder does not know the application.
        LeaseHeldError: It is running.
    """
    state, tables = folders(settings, application)
    database = ControlDatabase(settings.control_database_url)
    with at_rest(database, application):
        # The state goes first: tasks restore from tables without local state, but do not trust state without tables.
        _remove(state, settings.tmp)
        tables.parent.delete_folder(application)
        forget(settings, application)
    database.forget(application)


def _remove(folder: Path, scratch: Path) -> None:
    """Move a folder aside in one step before deleting it, so that a kill never leaves half of it in place."""
    if not folder.exists():
        return
    scratch.mkdir(parents=True, exist_ok=True)
    aside = scratch / f"reset-{os.getpid()}-{folder.parent.name}-{folder.name}"
    free(folder)
    folder.rename(aside)
    shutil.rmtree(aside)
