"""Kafka Streams' ``.checkpoint`` and ``.position`` files: offsets by topic partition, read as positions and written.

Their format is ``weir.state.stores.positions_file``. An offset is that of the last record in the state, so a position,
the next offset to read, is one more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from weir.pipelines.migrate.errors import MigrationError, OffsetFileError
from weir.state.errors import PositionsFileError
from weir.state.stores import positions_file
from weir.state.types import TopicPartition

CHECKPOINT = ".checkpoint"


def offset_files(paths: Iterable[Path]) -> list[Path]:
    """The files among ``paths``, and every ``.checkpoint`` and ``.position`` file below the folders among them; sorted.

    Raises:
        MigrationError: A path does not exist, or a folder has no such file.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_file():
            found.add(path)
            continue
        below = {file for pattern in (CHECKPOINT, "*.position") for file in path.rglob(pattern)}
        if not below:
            raise MigrationError(
                f"{path} is not a file, nor a folder with {CHECKPOINT} or .position files; name the files, or "
                "the state folder of the Kafka Streams application"
            )
        found |= below
    return sorted(found)


def read_positions(files: Iterable[Path], topics: Collection[str]) -> dict[TopicPartition, int]:
    """The next offset to read of every topic partition for which the files have one.

    Raises:
        OffsetFileError: A file is not in the format.
        MigrationError: Two files disagree, or no offset is known for a partition of ``topics`` that a file names.
    """
    positions: dict[TopicPartition, int] = {}
    origins: dict[TopicPartition, Path] = {}
    unknown: dict[TopicPartition, Path] = {}
    for file in files:
        for partition, offset in read_offsets(file).items():
            if offset is None:
                unknown.setdefault(partition, file)
                continue
            if positions.setdefault(partition, offset + 1) != offset + 1:
                raise MigrationError(
                    f"{file} has offset {offset} for partition {partition[1]} of {partition[0]!r}, but "
                    f"{origins[partition]} has {positions[partition] - 1}; nothing was changed: name the files of one"
                )
            origins[partition] = file
    for (topic, number), file in sorted(unknown.items()):
        if topic in topics and (topic, number) not in positions:
            raise MigrationError(
                f"{file} has no known offset for partition {number} of {topic!r}, since the one that it has is "
                "negative; nothing was changed: name a file that has it, too"
            )
    return positions


def read_offsets(file: Path) -> dict[TopicPartition, int | None]:
    """The entries of one file; None where no offset is known.

    Raises:
        OffsetFileError: Another version, a wrong count, or a line that is not an entry.
    """
    try:
        return positions_file.read_offsets(file)
    except PositionsFileError as error:
        raise OffsetFileError(error.path, error.line, error.reason) from None


def check_checkpoint(folder: Path, positions: Mapping[TopicPartition, int | None]) -> bool:
    """Whether the ``.checkpoint`` file of a task's folder has ``positions`` already; it may be missing if none was ever
    read. The position None stands for one that is not known.

    Raises:
        MigrationError: The file exists with other offsets.
    """
    file = folder / CHECKPOINT
    held = read_offsets(file) if file.exists() else {}
    if held == _entries(positions):
        return True
    if file.exists():
        raise MigrationError(f"{file} exists with other offsets; nothing was changed: choose an empty folder")
    return False


def write_checkpoint(folder: Path, positions: Mapping[TopicPartition, int | None]) -> bool:
    """Write ``positions`` as the ``.checkpoint`` file of a task's folder; False when there is nothing to write.

    A partition that was never read has no entry. Raises what ``check_checkpoint`` raises.
    """
    if check_checkpoint(folder, positions):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    positions_file.write_offsets(folder / CHECKPOINT, _entries(positions))
    return True


def _entries(positions: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int | None]:
    return {
        partition: None if position is None else position - 1
        for partition, position in sorted(positions.items())
        if position is None or position > 0
    }
