"""Folders of an object store, as ``weir.state.storage.contract`` wants them, by obstore.

What is put is whole and durable at once, so ``sync`` has nothing to do. That one of several writers of a name wins is
up to the store, which must refuse a second put of one name: ``require_conditional_puts`` asks it.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import ObjectStore, from_url

from weir.state.errors import ConditionalPutError, ObjectStoreError
from weir.state.storage.contract import File, Target

if TYPE_CHECKING:
    from obstore import ObjectMeta

_CHUNK_BYTES = 8 << 20
_WRITER = "weirwriter"
"""The attribute that tells a writer its own file from that of another."""
_AT_ONCE = 16
_PUTS = 3
"""How often a put is tried whose answer has been lost; what the server refuses for now is tried again below that."""
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "s3": {"aws_conditional_put": "etag", "aws_allow_http": "true"},
    "az": {"azure_allow_http": "true"},
    "gs": {},
}
"""What delta-rs and polars have to be told, by scheme; the rest they find in the environment, as obstore does."""
_MESSAGE = re.compile("<Message>(.*?)</Message>", re.DOTALL)
_CHECKED = ".weir"
"""The hidden folder of files by which a store is asked whether it refuses a second put."""


@dataclass(frozen=True)
class ObjectFolder:
    """A folder of an object store: the names that begin with ``prefix`` and a slash."""

    root: str
    """The URI of the store's own root, for example ``s3://bucket``."""
    prefix: str
    store: ObjectStore = field(compare=False, repr=False)
    options: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.prefix.rpartition("/")[2]

    @property
    def parent(self) -> ObjectFolder:
        return self._at(self.prefix.rpartition("/")[0])

    @property
    def path(self) -> None:
        return None

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.prefix}".rstrip("/")

    def __truediv__(self, name: str) -> ObjectFolder:
        return self._at(self._key(name))

    def __str__(self) -> str:
        return self.uri

    def make(self) -> None:
        """There are no empty folders."""

    def get(self, name: str) -> bytes:
        with self._asking():
            return bytes(obstore.get(self.store, self._key(name)).bytes())

    def get_range(self, name: str, start: int, length: int) -> bytes:
        with self._asking():
            return bytes(obstore.get_range(self.store, self._key(name), start=start, length=length))

    def find(self, name: str) -> File | None:
        try:
            with self._asking():
                found = obstore.head(self.store, self._key(name))
        except FileNotFoundError:
            return None
        return File(name=name, size_bytes=found["size"], modified_s=found["last_modified"].timestamp())

    def find_all(self, names: Sequence[str]) -> Sequence[File | None]:
        return [self.find(name) for name in names] if len(names) < 2 else [*_asking_at_once().map(self.find, names)]

    def list(self, prefix: str = "", *, after: str = "", below: bool = False) -> Iterator[File]:
        parent = prefix.rpartition("/")[0]
        folder = self / parent if parent else self
        with self._asking():
            for found in _found(self.store, folder.prefix, self._key(after) if after else None, below=below):
                name = found["path"].removeprefix(f"{self.prefix}/" if self.prefix else "")
                rest = name[len(parent) :].lstrip("/")
                is_hidden = any(part.startswith(".") for part in rest.split("/"))
                if name.startswith(prefix) and not is_hidden and (below or "/" not in rest):
                    yield File(name=name, size_bytes=found["size"], modified_s=found["last_modified"].timestamp())

    def folders(self) -> Iterator[str]:
        with self._asking():
            found = obstore.list_with_delimiter(self.store, self.prefix or None)["common_prefixes"]
        for path in found:
            if not (name := path.rpartition("/")[2]).startswith("."):
                yield name

    def put(self, name: str, data: bytes) -> None:
        with self._asking():
            obstore.put(self.store, self._key(name), data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """As the contract has it; a put that is repeated because its answer was lost finds the file of the first try,
        and knows it by an attribute."""
        writer, key = uuid.uuid4().hex, self._key(name)
        with self._asking():
            for left in reversed(range(_PUTS)):
                try:
                    obstore.put(self.store, key, data, mode="create", attributes={_WRITER: writer}, use_multipart=False)
                    return True
                except AlreadyExistsError:
                    with suppress(FileNotFoundError):
                        return obstore.get(self.store, key).attributes.get(_WRITER) == writer
                    if not left:  # S3 answers so, too, if two put at once and neither has succeeded
                        raise
                except GenericError:
                    if not left:
                        raise
        raise AssertionError("the last try returns or raises")

    def add(
        self, name: str, write: Callable[[Target], object], *, what: str, needed: int, is_durable: bool = True
    ) -> int:
        content = BytesIO()
        write(content)
        size_bytes = content.tell()
        content.seek(0)
        with self._asking():
            obstore.put(self.store, self._key(name), content)
        return size_bytes

    def upload(self, name: str, source: Path, size_bytes: int, *, what: str) -> int:
        sent = _Checked(_chunks(source, size_bytes))
        with self._asking():
            obstore.put(self.store, self._key(name), sent)
        return sent.checksum

    def download(self, name: str, target: Path, size_bytes: int, *, take: bool = False) -> int:
        checksum = done = 0
        with target.open("xb") as file, self._asking():
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
        self._delete([self._key(name) for name in names])

    def delete_folder(self, name: str) -> None:
        """As the contract has it for Delta tables, whose logs go first; not in one step."""
        with self._asking():
            keys = [found["path"] for found in _found(self.store, self._key(name), None, below=True)]
        self._delete([key for key in keys if "/_delta_log/" in key])
        self._delete([key for key in keys if "/_delta_log/" not in key])

    def remove_empty(self, name: str) -> None:
        """There are no empty folders."""

    def remove_leftovers(self) -> None:
        """There are none: a file that was not put in full is not there."""

    def _delete(self, keys: Sequence[str]) -> None:
        with self._asking():
            try:
                if keys:
                    obstore.delete(self.store, keys)
            except FileNotFoundError:  # some stores say so, and stop there
                for key in keys:
                    with suppress(FileNotFoundError):
                        obstore.delete(self.store, key)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Errors become those of the contract, with the folder and without obstore's pages of detail."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise _store_error(self.uri, error) from None
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri) from None
        except BaseError as error:
            raise _store_error(self.uri, error) from None

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _at(self, prefix: str) -> ObjectFolder:
        return ObjectFolder(self.root, prefix, self.store, self.options)


def object_folder(uri: str) -> ObjectFolder:
    """The folder at ``s3://bucket/path``, ``gs://bucket/path`` or ``az://container/path``. Credentials and the endpoint
    are those of the environment.

    Raises:
        ObjectStoreError: The environment does not say enough of the store.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    root = f"{scheme}://{bucket}"
    return ObjectFolder(root, path.rstrip("/"), _store(root), _OPTIONS[scheme])


@cache
def _store(root: str) -> ObjectStore:
    """One a process, with its connections."""
    try:
        return from_url(root, client_options={"allow_http": True})
    except BaseError as error:
        raise _store_error(root, error) from None


@cache
def _asking_at_once() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, "storage")


def _found(store: ObjectStore, prefix: str, after: str | None, *, below: bool) -> Iterator[ObjectMeta]:
    if not below and after is None:
        yield from obstore.list_with_delimiter(store, prefix or None)["objects"]
        return
    for part in obstore.list(store, prefix or None, offset=after):
        yield from part


def _store_error(uri: str, error: Exception) -> ObjectStoreError:
    text = str(error)
    reason, said = text.partition("\n")[0].partition("<?xml")[0].strip(" :"), _MESSAGE.search(text)
    return ObjectStoreError(uri, f"{reason}: {said[1]}" if said else reason)


def require_conditional_puts(folder: ObjectFolder) -> None:
    """Raise ``ConditionalPutError`` unless the store refuses a second put of one name; ``ObjectStoreError`` if it
    cannot be asked."""
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
