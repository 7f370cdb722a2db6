"""What a worker of a Spark cluster reads from the environment of its host, without all settings."""

from __future__ import annotations

import os
from pathlib import Path

DIR = ".weir"
STATE = "state"
RACK_VARIABLE = "WEIR_RACK"
"""No setting, since it is about the host of an executor, not about a run."""


def state_dir_here() -> Path:
    """The folder of local state that this host's ``WEIR_DIR`` names."""
    return Path(os.path.abspath(os.environ.get("WEIR_DIR") or DIR), STATE)


def rack_here() -> str | None:
    """The rack or zone that this host's variable names; None if it is not known."""
    return os.environ.get(RACK_VARIABLE) or None
