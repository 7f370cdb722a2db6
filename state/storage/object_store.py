"""Folders of an object store, as ``weir.state.storage.contract`` wants them, by obstore.

What is put is whole and durable at once, so ``sync`` has nothing to do. That one of several writers of a name wins is
up to the store, which must refuse a second put of one name: ``require_conditional_puts`` asks it.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from weir.state.errors import ConditionalPutError
from weir.state.storage.contract import File, Target

_CHUNK_BYTES = 8 << 20
_WRITER = "weir-writer"
"""The attribute that tells a writer its own file from that of another."""
_CHECKED = ".weir"
"""The hidden folder of files by which a store is asked whether it refuses a second put."""


@dataclass(frozen=True)
class ObjectFolder:
    """A folder of an object store: the names that begin with ``path`` and a slash."""

    root: str
    """The URI of the store's own root, for example ``s3://bucket``."""
    path: str
    store: ObjectStore = field(compare=False, repr=False)
    options: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> ObjectFolder:
        return self._at(self.path.rpartition("/")[0])

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.path}".rstrip("/")

    def __truediv__(self, name: str) -> ObjectFolder:
        return self._at(self._key(name))

    def get(self, name: str) -> bytes:
        return bytes(obstore.get(self.store, self._key(name)).bytes())

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return bytes(obstore.get_range(self.store, self._key(name), start=start, length=length))

    def find(self, name: str) -> File | None:
        try:
            found = obstore.head(self.store, self._key(name))
        except FileNotFoundError:
            return None
        return File(name=name, size_bytes=found["size"], modified_s=found["last_modified"].timestamp())

    def list(self, prefix: str = "", *, after: str = "", below: bool = False) -> Iterator[File]:
        folder = self / prefix.rpartition("/")[0] if "/" in prefix else self
        offset = self._key(after) if after else None
        for found in (each for part in obstore.list(self.store, folder.path or None, offset=offset) for each in part):
            name = found["path"].removeprefix(f"{self.path}/" if self.path else "")
            rest = name[len(prefix.rpartition("/")[0]) :].lstrip("/")
            is_hidden = any(part.startswith(".") for part in rest.split("/"))
            if name.startswith(prefix) and not is_hidden and (below or "/" not in rest):
                yield File(name=name, size_bytes=found["size"], modified_s=found["last_modified"].timestamp())

    def folders(self) -> Iterator[str]:
        for path in obstore.list_with_delimiter(self.store, self.path or None)["common_prefixes"]:
            if not (name := path.rpartition("/")[2]).startswith("."):
                yield name

    def put(self, name: str, data: bytes) -> None:
        obstore.put(self.store, self._key(name), data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """As the contract has it; a put that is repeated because its answer was lost finds the file of the first try,
        and knows it by an attribute."""
        writer, key = uuid.uuid4().hex, self._key(name)
        try:
            obstore.put(self.store, key, data, mode="create", attributes={_WRITER: writer}, use_multipart=False)
        except AlreadyExistsError:
            try:
                return obstore.get(self.store, key).attributes.get(_WRITER) == writer
            except FileNotFoundError:  # deleted meanwhile
                return False
        return True

    def add(
        self, name: str, write: Callable[[Target], object], *, what: str, needed: int, is_durable: bool = True
    ) -> int:
        content = BytesIO()
        write(content)
        size_bytes = content.tell()
        content.seek(0)
        obstore.put(self.store, self._key(name), content)
        return size_bytes

    def upload(self, name: str, source: Path, size_bytes: int, *, what: str) -> int:
        sent = _Checked(_chunks(source, size_bytes))
        obstore.put(self.store, self._key(name), sent)
        return sent.checksum

    def download(self, name: str, target: Path, size_bytes: int, *, take: bool = False) -> int:
        checksum = done = 0
        with target.open("xb") as file:
            for chunk in obstore.get(self.store, self._key(name)).stream(min_chunk_size=_CHUNK_BYTES):
                part = bytes(chunk)[: size_bytes - done]
                file.write(part)
                checksum, done = zlib.crc32(part, checksum), done + len(part)
        if done < size_bytes:
            raise OSError(0, f"it ends {size_bytes - done:,} bytes early")
        return checksum

    def sync(self, names: Iterable[str] = ()) -> None:
        """What was put is durable."""

    def sync_content(self, name: str) -> None:
        """What was put is durable."""

    def delete(self, names: Iterable[str]) -> None:
        if keys := [self._key(name) for name in names]:
            obstore.delete(self.store, keys)

    def delete_folder(self, name: str) -> None:
        """As the contract has it for a Delta table, whose log goes first; not in one step."""
        keys = [found["path"] for part in obstore.list(self.store, self._key(name)) for found in part]
        obstore.delete(self.store, sorted(keys, key=lambda key: ("/_delta_log/" not in key, key)))

    def remove_empty(self, name: str) -> None:
        """There are no empty folders."""

    def remove_leftovers(self) -> None:
        """There are none: a file that was not put in full is not there."""

    def _key(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def _at(self, path: str) -> ObjectFolder:
        return ObjectFolder(self.root, path, self.store, self.options)


def require_conditional_puts(folder: ObjectFolder) -> None:
    """Raise ``ConditionalPutError`` unless the store refuses a second put of one name."""
    name = f"{_CHECKED}/{uuid.uuid4().hex}"
    try:
        if not (folder.put_if_absent(name, b"first") and not folder.put_if_absent(name, b"second")):
            raise ConditionalPutError(folder.uri)
    finally:
        folder.delete([name])


class _Checked:
    """Chunks as they are sent, and the CRC-32 of those that were."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self.checksum = chunks, 0

    def __iter__(self) -> _Checked:
        return self

    def __next__(self) -> bytes:
        chunk = next(self._chunks)
        self.checksum = zlib.crc32(chunk, self.checksum)
        return chunk


def _chunks(source: Path, size_bytes: int) -> Iterator[bytes]:
    with source.open("rb") as file:
        while size_bytes:
            chunk = file.read(min(size_bytes, _CHUNK_BYTES))
            if not chunk:
                raise OSError(0, f"it ends {size_bytes:,} bytes early")
            size_bytes -= len(chunk)
            yield chunk
