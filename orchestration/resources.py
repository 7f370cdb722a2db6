"""Dagster resources: the folder that Weir works in, and the client that starts and ends drivers."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from pydantic import Field

from weir.infra.settings import PREFIX, Settings

SETTINGS = ("bootstrap_servers", "control_url", "slots")
"""Of the resource's fields, those that are settings beside the folder."""
DRIVER_END_S = 60.0
"""How long a terminated run waits for its driver to finish the epoch and commit (10 s are promised)."""


class WeirResource(dg.ConfigurableResource):
    """Where Weir works. What is left out here, and every other setting, comes from ``WEIR_*`` variables and
    ``weir.toml``; Dagster shows what is written here, so a value with a password is an ``EnvVar``."""

    dir: str | None = Field(default=None, description="The folder, as --dir of the command line.")
    bootstrap_servers: str | None = Field(
        default=None, description="Your own Kafka, host:port,...; the folder's embedded broker when left out."
    )
    control_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the control database; SQLite in the folder when left out."
    )
    slots: int | None = Field(default=None, ge=1, description="Places where tasks run at the same time.")

    def settings(self) -> Settings:
        """The settings of the folder, read anew at each call. Raises ``SettingsError``."""
        return Settings.load(Path(self.dir) if self.dir else None, self._settings())

    def environment(self) -> dict[str, str]:
        """The variables that give a child process the same settings, beside those that it inherits."""
        return {f"{PREFIX}{name.upper()}": value for name, value in self._settings().items()}

    def _settings(self) -> dict[str, str]:
        return {name: str(value) for name in SETTINGS if (value := getattr(self, name)) is not None}


def driver_pipes() -> dg.PipesSubprocessClient:
    """Runs a driver as a process of its own; terminating the run sends it SIGINT and waits for its commit."""
    return dg.PipesSubprocessClient(termination_timeout_seconds=DRIVER_END_S)
