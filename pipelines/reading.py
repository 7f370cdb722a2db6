"""Reading the tables that an application writes, for programs and notebooks beside it."""

from __future__ import annotations

from pathlib import Path

import polars as pl


def read_table(folder: Path, version: int | None = None) -> pl.DataFrame:
    """The rows that stand at a Delta version or now; see ``weir.state.commit.tables.read_table``.

    Delta is loaded by the first call: whoever imports ``pipelines`` to define or run a topology does without it.
    """
    from weir.state.commit.tables import read_table as read

    return read(folder, version)
