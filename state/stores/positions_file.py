"""Small files of offsets in the format of Kafka Streams' ``.checkpoint`` and ``.position``.

A line with the version, one with the count, then a line ``topic partition offset`` for each topic partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from state.engine.environment import replace_file
from state.errors import PositionsFileError
from state.types import Positions

VERSION = 0


def write_positions(path: Path, positions: Mapping[str, Mapping[int, int]]) -> None:
    """Replace the file at once: readers and crashes see the old or the new content. Synced."""
    lines = [f"{topic} {partition} {offset}" for topic, offsets in sorted(positions.items())
             for partition, offset in sorted(offsets.items())]
    replace_file(path, "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode())


def read_positions(path: Path) -> Positions | None:
    """The offsets in the file; None when there is no such file.

    Raises:
        PositionsFileError: It is of another version, or a line cannot be right; names file and line.
    """
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    lines = text.splitlines()
    if not lines or lines[0].strip() != str(VERSION):
        raise PositionsFileError(str(path), 1, f"the version is {lines[0]!r}, and this Weir reads {VERSION}"
                                 if lines else "the file is empty")
    if len(lines) < 2 or not lines[1].strip().isdigit():
        raise PositionsFileError(str(path), 2, f"{lines[1]!r} is no count" if len(lines) > 1
                                 else "the count is missing")
    positions: Positions = {}
    for number, line in enumerate(lines[2:], 3):
        parts = line.split()
        if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
            raise PositionsFileError(str(path), number, f"{line!r} is not 'topic partition offset' with numbers from 0")
        positions.setdefault(parts[0], {})[int(parts[1])] = int(parts[2])
    found = sum(map(len, positions.values()))
    if found != int(lines[1]):
        raise PositionsFileError(str(path), 2, f"{lines[1].strip()} lines are announced, and there are {found}")
    return positions
