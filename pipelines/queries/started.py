"""What a server of queries is told when it starts, and what it tells once it can be asked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told."""

    reference: str
    """The program, ``MODULE:APP``."""
    names: Mapping[str, str] = {}
    topics: tuple[str, ...] = ()
    """As in ``weir.pipelines.spark.worker.WorkerSettings``."""
    application_folder: str
    state_folder: str
    host: str
    """The address to answer at."""
    first_port: int = 0
    """0 for one that the system picks."""
    token: str
    process: int
    """The executor's."""
    process_start: int | None
    """In clock ticks since boot."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What it tells once it can be asked."""

    port: int
    machine: str
    folder: str
