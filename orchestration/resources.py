"""Dagster resources: the folder that Weir works in, and the client that starts and ends drivers."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from infra.settings import Settings

DRIVER_END_S = 60.0
"""How long a terminated run waits for its driver to finish the epoch and commit (10 s are promised)."""


class WeirResource(dg.ConfigurableResource):
    """Where Weir works; everything else comes from ``WEIR_*`` variables and ``weir.toml``."""

    dir: str | None = None
    """The folder, as ``--dir`` of the command line; ``WEIR_DIR`` or ``.weir`` when left out."""

    def settings(self) -> Settings:
        """The settings of the folder, read anew at each call. Raises ``SettingsError``."""
        return Settings.load(Path(self.dir) if self.dir else None)


def driver_pipes() -> dg.PipesSubprocessClient:
    """Runs a driver as a process of its own; terminating the run sends it SIGINT and waits for its commit."""
    return dg.PipesSubprocessClient(termination_timeout_seconds=DRIVER_END_S)
