"""Dagster resources: the folder that Weir works in, and the client that runs drivers as separate processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterPipesExecutionError  # has no public name
from pydantic import Field

from weir.infra.process import close_files, end_with
from weir.infra.settings import PREFIX, Settings
from weir.orchestration.supervised import Supervised

SETTINGS = ("bootstrap_servers", "control_url", "slots")
"""The fields of the resource that are settings, besides the folder."""
DRIVER_END_S = 60.0
"""How long a terminated run waits for its driver to finish the epoch and commit (10 s are promised)."""


class WeirResource(dg.ConfigurableResource[Any]):
    """Where Weir works. Anything left out here, and every other setting, comes from ``WEIR_*`` variables and
    ``weir.toml``. Dagster shows these fields, so give a value that holds a password as an ``EnvVar``."""

    dir: str | None = Field(default=None, description="The folder, like --dir on the command line.")
    bootstrap_servers: str | None = Field(
        default=None, description="Your own Kafka, host:port,...; the folder's embedded broker when left out."
    )
    control_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the control database; SQLite in the folder when left out."
    )
    slots: int | None = Field(default=None, ge=1, description="How many tasks run at the same time.")

    def settings(self) -> Settings:
        """The settings of the folder, read again at each call; what this process writes from then on is closed to
        others, as they say. Raises ``SettingsError``."""
        settings = Settings.load(Path(self.dir) if self.dir else None, self._settings())
        close_files(settings.umask)
        return settings

    def environment(self) -> dict[str, str]:
        """The variables that give a child process the same settings, in addition to those that it inherits."""
        return {f"{PREFIX}{name.upper()}": value for name, value in self._settings().items()}

    def _settings(self) -> dict[str, str]:
        return {name: str(value) for name in SETTINGS if (value := getattr(self, name)) is not None}


def driver_pipes() -> dg.PipesSubprocessClient:
    """Runs drivers as separate processes; terminating a run sends its driver SIGINT and waits for the commit."""
    return dg.PipesSubprocessClient(termination_timeout_seconds=DRIVER_END_S)


def run_driver(
    module: str,
    supervised: Supervised,
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    weir: WeirResource,
    pipes: dg.PipesSubprocessClient,
    extras: Mapping[str, object],
) -> tuple[dg.PipesClientCompletedInvocation, Mapping[str, Any]] | None:
    """Run ``python -m module`` to its end and return its reports and its closing record.

    None if it left no closing record: it was killed, or did not start. ``DagsterExecutionInterruptedError`` means
    that the run was terminated and the driver has ended.
    """
    if multiprocessing.parent_process() is not None:  # a step of a run worker: its end must reach the driver
        end_with(os.getppid(), signal.SIGTERM)
        gc.freeze()  # or its end looks through all that was imported, 0.9 s of CPU for which a terminated run waits
    try:
        finished = pipes.run(
            context=context,
            command=[sys.executable, "-m", module],
            env=weir.environment(),
            extras={
                "reference": supervised.reference,
                "import_from": supervised.import_from,
                "dir": str(weir.settings().dir),
                "parent": os.getpid(),
                **extras,
            },
        )
    except DagsterPipesExecutionError:
        return None
    closing = next(iter(finished.get_custom_messages()), None)
    return None if closing is None else (finished, closing)
