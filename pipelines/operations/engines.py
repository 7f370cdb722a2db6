"""What a compaction can be made by."""

from __future__ import annotations

from enum import StrEnum


class Engine(StrEnum):
    """What merges the rows of updates; facts are packed in the process in any case, 32 MB at a time."""

    PROCESS = "process"
    SPARK = "spark"
