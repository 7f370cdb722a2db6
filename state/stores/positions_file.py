"""Small files of offsets in the format of Kafka Streams' ``.checkpoint`` and ``.position``.

The first line is the version (0), the second the number of entries; then follows one entry per line: ``topic partition
offset``. Whether an offset is that of the next record or of the last one is up to the owner. A negative offset means
that none is known: Kafka Streams writes -4 for a store whose offset it does not know, and skips others when it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weir.state.engine.environment import replace_file, sync_folder
from weir.state.errors import PositionsFileError
from weir.state.types import TopicPartition

VERSION = 0
UNKNOWN = -4
"""What Kafka Streams writes where it knows no offset."""


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int | None]) -> None:
    """Replace the file atomically and synced: readers, even after a crash, see the old or the new content.

    Without offsets there is no file: one that exists is removed. None stands for an offset that is not known.

    Raises:
        ValueError: An offset is negative; the file is as before.
    """
    for (topic, partition), offset in sorted(offsets.items()):
        if offset is not None and offset < 0:
            raise ValueError(f"{path}: the offset {offset} of partition {partition} of {topic!r} is negative")
    if not offsets:
        if path.exists():
            path.unlink()
            sync_folder(path.parent)
        return
    lines = [
        f"{topic} {partition} {UNKNOWN if offset is None else offset}"
        for (topic, partition), offset in sorted(offsets.items())
    ]
    replace_file(path, "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode())


def read_offsets(path: Path) -> dict[TopicPartition, int | None]:
    """The entries of a file; None where no offset is known.

    Raises:
        PositionsFileError: Another version, a wrong count, or a line that is not an entry; the error names file and
            line.
        FileNotFoundError: There is no such file.
    """

    def broken(line: int, reason: str) -> PositionsFileError:
        return PositionsFileError(str(path), line, reason)

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise broken(1, f"the file is not UTF-8 text: {error.reason} at byte {error.start}") from None
    heads: list[int] = []
    for number, what in ((1, "the version"), (2, "the number of entries")):
        if len(lines) < number:
            raise broken(number, f"the file ends before {what}")
        head = _integer(lines[number - 1].strip())
        if head is None or head < 0:
            raise broken(number, f"{lines[number - 1]!r} is not {what}")
        heads.append(head)
    version, count = heads
    if version != VERSION:
        raise broken(1, f"the file has version {version}, but only version {VERSION} can be read")
    offsets: dict[TopicPartition, int | None] = {}
    for number, line in enumerate(lines[2:], start=3):
        parts = line.split()
        if len(parts) != 3:
            raise broken(number, f"{line!r} is not `topic partition offset`")
        topic, partition, offset = parts[0], _integer(parts[1]), _integer(parts[2])
        if partition is None or partition < 0:
            raise broken(number, f"{parts[1]!r} is not a partition number")
        if offset is None:
            raise broken(number, f"{parts[2]!r} is not an offset")
        if (topic, partition) in offsets:
            raise broken(number, f"partition {partition} of {topic!r} is listed a second time")
        offsets[topic, partition] = offset if offset >= 0 else None
    if len(offsets) != count:
        raise broken(2, f"the number of entries is given as {count}, but the file holds {len(offsets)}")
    return offsets


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else None
