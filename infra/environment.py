"""What a worker of a Spark cluster reads from the environment of its host, without all settings."""

from __future__ import annotations

import os
from pathlib import Path

DIR = ".weir"
STATE = "state"


def state_dir_here() -> Path:
    """The folder of local state that this host's ``WEIR_DIR`` names."""
    return Path(os.path.abspath(os.environ.get("WEIR_DIR") or DIR), STATE)
