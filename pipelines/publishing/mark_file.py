"""How far a sink has come, in a file in its outbox, for outside systems that keep nothing of the kind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from weir.pipelines.publishing.connection import Published, SinkError, SinkFencedError
from weir.state.commit.outbox import Mark
from weir.state.engine.environment import replace_file

NAME = "_published.json"
"""In the folder of the outbox's table, which takes no notice of it."""


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """The connection that was made last."""
    outbox: str | None = None
    epoch: int = 0
    rows: int = 0
    refusals: int = 0
    """How often the batch after the mark has been refused."""


class MarkFile:
    """The mark, owned by whoever has opened it last; the file is replaced whole and synced. Each method raises
    ``SinkError`` if the file cannot be read or written, or is just being moved."""

    def __init__(self, outbox_folder: Path) -> None:
        self._folder, self._owner = outbox_folder, uuid4().hex
        with self._locked():
            self._write(msgspec.structs.replace(self._read(), owner=self._owner))

    def read(self) -> Published | None:
        """How far the sink has come; None if it has got nothing.

        Raises:
            SinkFencedError: Somebody else has opened it since.
        """
        with self._locked():
            content = self._owned()
        return None if content.outbox is None else Published(content.outbox, Mark(content.epoch, content.rows))

    def write(self, published: Published) -> None:
        """Move the mark.

        Raises:
            SinkFencedError: Somebody else has opened it since; the mark is as it was.
        """
        with self._locked():
            self._owned()
            outbox, mark = published
            self._write(_Content(owner=self._owner, outbox=outbox, epoch=mark.epoch, rows=mark.rows))

    def refusals(self) -> int:
        """How often the batch after the mark has been refused.

        Raises:
            SinkFencedError: Somebody else has opened it since.
        """
        with self._locked():
            return self._owned().refusals

    def count_refusal(self) -> None:
        """Note that the batch after the mark has been refused once more.

        Raises:
            SinkFencedError: Somebody else has opened it since; the number is as it was.
        """
        with self._locked():
            content = self._owned()
            self._write(msgspec.structs.replace(content, refusals=content.refusals + 1))

    def _owned(self) -> _Content:
        content = self._read()
        if content.owner != self._owner:
            raise SinkFencedError("another publisher has taken over")
        return content

    @property
    def _path(self) -> Path:
        return self._folder / NAME

    def _read(self) -> _Content:
        """What the file says; nothing if there is none, or what is there is no mark."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(self._path.read_bytes(), type=_Content)
        return _Content(owner="")

    def _write(self, content: _Content) -> None:
        replace_file(self._path, msgspec.json.encode(content))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else moves the mark or takes it over meanwhile."""
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever has it may have been stopped
                yield
            finally:
                os.close(folder)
        except OSError as error:
            raise SinkError(f"{self._path}: {error}") from error
