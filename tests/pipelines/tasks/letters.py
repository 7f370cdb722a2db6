"""All dead letters of an application."""

from pathlib import Path

import polars as pl

from weir.pipelines.tasks.dead_letter_files import PLACE, DeadLetterFiles
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS


def read_dead_letters(app_folder: Path) -> pl.DataFrame:
    """Oldest epoch first, with ``replayed``."""
    return DeadLetterFiles(app_folder).newest([*DEAD_LETTERS.schema, "replayed"]).sort(PLACE)
