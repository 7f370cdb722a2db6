"""The checkpoint folder of a Spark Structured Streaming query: its positions in Kafka topics.

``offsets/<batch>`` is written before the batch runs. It holds a version line, a line of metadata and one line per
source (in version 2 after the source's name and a colon) that says where the batch ends. ``commits/<batch>`` exists
once the batch is done, so the newest committed batch's offsets are the positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from weir.pipelines.migrate.errors import MigrationError, OffsetFileError
from weir.state.types import TopicPartition

VERSIONS = ("v1", "v2")
_NO_OFFSET = "-"


@dataclass(frozen=True, kw_only=True)
class CheckpointPositions:
    """A query's positions."""

    batch: int
    """The newest committed batch."""
    positions: dict[TopicPartition, int]
    """Next offsets to read."""
    is_interrupted: bool
    """Whether a later batch was begun but not committed; its input is read again."""


def read_spark_checkpoint(folder: Path) -> CheckpointPositions:
    """The positions of the newest committed batch of a query.

    Raises:
        MigrationError: The folder is not a checkpoint, no batch is committed, or none of its sources is Kafka.
        OffsetFileError: A file is not in the format.
    """
    planned, committed = _batches(folder / "offsets"), _batches(folder / "commits")
    if not planned or not committed:
        lacks = "committed batch" if planned else "offsets of a streaming query"
        raise MigrationError(f"{folder} has no {lacks}; name the query's checkpointLocation")
    batch = committed[-1]
    _require_version(folder / "commits" / str(batch))
    file = folder / "offsets" / str(batch)
    if batch not in planned:
        raise MigrationError(f"{file} is missing, though batch {batch} is committed; restore the folder from a copy")
    has_names = _require_version(file) == "v2"
    positions: dict[TopicPartition, int] = {}
    for number, line in enumerate(_lines(file)[2:], start=3):
        source = line.partition(":")[2] if has_names else line
        for partition, offset in _source_offsets(file, number, source).items():
            if positions.setdefault(partition, offset) != offset:
                raise OffsetFileError(
                    str(file), number, f"has topic {partition[0]!r} a second time, with other offsets"
                )
    if not positions:
        raise MigrationError(f"{file} has no Kafka source with offsets; only positions in Kafka can be migrated")
    return CheckpointPositions(batch=batch, positions=positions, is_interrupted=planned[-1] > batch)


def _batches(folder: Path) -> list[int]:
    """The batches that have a file, oldest first; files like ``.0.crc`` are internal to Spark."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise OffsetFileError(str(file), 1, f"is not text: {error.reason} at byte {error.start}") from None


def _require_version(file: Path) -> str:
    version = next(iter(_lines(file)), "")
    if version not in VERSIONS:
        raise OffsetFileError(str(file), 1, f"has version {version!r}, but only {' and '.join(VERSIONS)} can be read")
    return version


def _source_offsets(file: Path, number: int, line: str) -> dict[TopicPartition, int]:
    """The offsets of one source; empty if it is not Kafka or has read nothing."""
    if line == _NO_OFFSET:
        return {}
    try:
        source = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise OffsetFileError(str(file), number, f"is not the offset of a source: {error}") from None
    if not isinstance(source, dict) or not all(isinstance(offsets, dict) for offsets in source.values()):
        return {}
    try:
        by_topic = msgspec.convert(source, dict[str, dict[int, int]], strict=False)
    except msgspec.ValidationError as error:
        raise OffsetFileError(str(file), number, f"is not offsets by topic and partition: {error}") from None
    found = {(topic, partition): offset for topic, offsets in by_topic.items() for partition, offset in offsets.items()}
    for (topic, partition), offset in found.items():
        if offset < 0:
            raise OffsetFileError(
                str(file), number, f"the offset {offset} of topic {topic!r}, partition {partition}, is negative"
            )
    return found
