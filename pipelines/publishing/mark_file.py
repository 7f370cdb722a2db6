"""How far a sink has come, beside its outbox, for outside systems that keep nothing of the kind.

Marks are files with numbers, and the greatest counts. Each new one is put under the next number unless somebody else
has that already, so of two publishers one is fenced, on every storage and without a lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import msgspec

from weir.pipelines.publishing.connection import Published, SinkError, SinkFencedError
from weir.state.commit.outbox import Mark
from weir.state.storage.contract import Folder

FOLDER = "_published"
"""In the folder of the outbox's table, which takes no notice of it."""
_BEFORE = "_published.json"
"""The mark that earlier versions kept there, in one file."""


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """The connection that was made last."""
    outbox: str | None = None
    epoch: int = 0
    rows: int = 0
    refusals: int = 0
    """How often the batch after the mark has been refused."""


_CONTENTS = msgspec.json.Decoder(_Content)


class MarkFile:
    """The mark, owned by whoever has opened it last; whole and durable once written. Each method raises ``SinkError``
    if it cannot be read or written."""

    def __init__(self, outbox_folder: Folder) -> None:
        self._folder, self._owner = outbox_folder / FOLDER, uuid4().hex
        with self._told():
            if not (numbers := self._numbers()):
                self._folder.put(_name(0), _before(outbox_folder))
                numbers = [0]
            self._folder.remove_leftovers()
            self._number = max(numbers)
            found = _content(self._folder.get(_name(self._number)))
        self._write(msgspec.structs.replace(found, owner=self._owner))

    def read(self) -> Published | None:
        """How far the sink has come; None if it has got nothing.

        Raises:
            SinkFencedError: Somebody else has opened it since.
        """
        content = self._owned()
        return None if content.outbox is None else Published(content.outbox, Mark(content.epoch, content.rows))

    def write(self, published: Published) -> None:
        """Move the mark.

        Raises:
            SinkFencedError: Somebody else has opened it since; the mark is as it was.
        """
        outbox, mark = published
        self._write(_Content(owner=self._owner, outbox=outbox, epoch=mark.epoch, rows=mark.rows))

    def refusals(self) -> int:
        """How often the batch after the mark has been refused.

        Raises:
            SinkFencedError: Somebody else has opened it since.
        """
        return self._owned().refusals

    def count_refusal(self) -> None:
        """Note that the batch after the mark has been refused once more.

        Raises:
            SinkFencedError: Somebody else has opened it since; the number is as it was.
        """
        content = self._owned()
        self._write(msgspec.structs.replace(content, refusals=content.refusals + 1))

    def _owned(self) -> _Content:
        with self._told():
            self._require_newest()
            try:
                return _content(self._folder.get(_name(self._number)))
            except FileNotFoundError:  # removed by whoever has the next number
                raise SinkFencedError(_FENCED) from None

    def _write(self, content: _Content) -> None:
        with self._told():
            if not self._folder.put_if_absent(_name(self._number + 1), msgspec.json.encode(content)):
                raise SinkFencedError(_FENCED)
            self._number += 1
            older = self._require_newest()
            self._folder.delete(map(_name, older))

    def _require_newest(self) -> list[int]:
        """The numbers that no longer count. A number that was free may be one that has been cleaned up since."""
        numbers = self._numbers()
        if not numbers or max(numbers) != self._number:
            raise SinkFencedError(_FENCED)
        return [number for number in numbers if number < self._number]

    def _numbers(self) -> list[int]:
        names = (file.name.removesuffix(".json") for file in self._folder.list())
        return [int(name) for name in names if name.isdecimal()]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SinkError(f"{self._folder}: {error}") from error


_FENCED = "another publisher has taken over"


def _name(number: int) -> str:
    return f"{number:020}.json"


def _before(outbox_folder: Folder) -> bytes:
    try:
        return outbox_folder.get(_BEFORE)
    except FileNotFoundError:
        return b""


def _content(data: bytes) -> _Content:
    """What a mark says; nothing if it is none."""
    try:
        return _CONTENTS.decode(data)
    except msgspec.DecodeError:
        return _Content(owner="")
