"""Kafka Streams' ``.checkpoint`` and ``.position`` files: offsets by topic partition, as positions and back.

A version line (0), a line with the number of entries, and an entry a line: ``topic partition offset``. The offset is of
the last record that is in the state, so a position, the next offset to read, is one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipelines.migrate.errors import MigrationError, OffsetFileError
from state.engine.environment import replace_file

TopicPartition = tuple[str, int]
VERSION = 0
CHECKPOINT = ".checkpoint"
_UNKNOWN = -4


def offset_files(paths: Iterable[Path]) -> list[Path]:
    """The files among ``paths`` and, of folders, every ``.checkpoint`` and ``.position`` file below; sorted.

    Raises:
        MigrationError: A path does not exist, or a folder holds no such file.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_file():
            found.add(path)
            continue
        below = {file for pattern in (CHECKPOINT, "*.position") for file in path.rglob(pattern)}
        if not below:
            raise MigrationError(f"{path} is no file and holds no {CHECKPOINT} or .position files; name the files, or "
                                 "the state folder of the Kafka Streams application")
        found |= below
    return sorted(found)


def read_positions(files: Iterable[Path]) -> dict[TopicPartition, int]:
    """The next offset to read of every topic partition that the files name.

    Raises:
        OffsetFileError: A file is not of the format.
        MigrationError: Two files disagree.
    """
    positions: dict[TopicPartition, int] = {}
    origins: dict[TopicPartition, Path] = {}
    for file in files:
        for partition, offset in read_offsets(file).items():
            if positions.setdefault(partition, offset + 1) != offset + 1:
                raise MigrationError(
                    f"{file} has offset {offset} for partition {partition[1]} of {partition[0]!r}, and "
                    f"{origins[partition]} has {positions[partition] - 1}; nothing was changed: name the files of one")
            origins[partition] = file
    return positions


def read_offsets(file: Path) -> dict[TopicPartition, int]:
    """The entries of one file as they stand.

    Raises:
        OffsetFileError: Another version, a wrong count, a line that is no entry, or a negative offset.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise OffsetFileError(str(file), 1, f"is not text: {error.reason} at byte {error.start}") from None
    version = _number(file, lines, 1, "the version")
    if version != VERSION:
        raise OffsetFileError(str(file), 1, f"has version {version}, and version {VERSION} can be read")
    count = _number(file, lines, 2, "the number of entries")
    offsets: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines[2:], start=3):
        parts = line.split()
        if len(parts) != 3:
            raise OffsetFileError(str(file), number, f"{line!r} is not `topic partition offset`")
        topic, partition, offset = parts[0], _integer(parts[1]), _integer(parts[2])
        if partition is None or partition < 0:
            raise OffsetFileError(str(file), number, f"{parts[1]!r} is not the number of a partition")
        if offset is None:
            raise OffsetFileError(str(file), number, f"{parts[2]!r} is not an offset")
        if offset < 0:
            known = ", Kafka Streams' mark for a store of unknown offset" if offset == _UNKNOWN else ""
            raise OffsetFileError(str(file), number, f"the offset {offset} is negative{known}")
        if (topic, partition) in offsets:
            raise OffsetFileError(str(file), number, f"names partition {partition} of {topic!r} a second time")
        offsets[topic, partition] = offset
    if len(offsets) != count:
        raise OffsetFileError(str(file), 2, f"promises {count} entries, and the file holds {len(offsets)}")
    return offsets


def check_checkpoint(folder: Path, positions: Mapping[TopicPartition, int]) -> bool:
    """Whether a task's folder has ``positions`` in its ``.checkpoint`` file already; False where there is no file.

    Raises:
        MigrationError: The file exists with other offsets.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return False
    if read_offsets(file) != _entries(positions):
        raise MigrationError(f"{file} exists with other offsets; nothing was changed: choose an empty folder")
    return True


def write_checkpoint(folder: Path, positions: Mapping[TopicPartition, int]) -> bool:
    """Put ``positions`` down as the ``.checkpoint`` file of a task's folder; False when it stands there already.

    A partition of which nothing was read has no entry. Raises what ``check_checkpoint`` raises.
    """
    if check_checkpoint(folder, positions):
        return False
    entries = _entries(positions)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [str(VERSION), str(len(entries)), *(f"{topic} {partition} {offset}"
                                                for (topic, partition), offset in entries.items())]
    replace_file(folder / CHECKPOINT, "".join(f"{line}\n" for line in lines).encode())
    return True


def _entries(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {partition: position - 1 for partition, position in sorted(positions.items()) if position > 0}


def _number(file: Path, lines: list[str], number: int, what: str) -> int:
    if len(lines) < number:
        raise OffsetFileError(str(file), number, f"the file ends before {what}")
    found = _integer(lines[number - 1].strip())
    if found is None or found < 0:
        raise OffsetFileError(str(file), number, f"{lines[number - 1]!r} is not {what}")
    return found


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else None
