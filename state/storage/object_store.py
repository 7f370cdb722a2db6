"""Folders of an object store, as ``weir.state.storage.contract`` wants them, by obstore.

What is put is whole and durable at once, so ``sync`` has nothing to do. That one of several writers of a name wins is
up to the store, which must refuse a second put of one name: ``require_conditional_puts`` asks it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import polars as pl
from deltalake.exceptions import DeltaError
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import ObjectStore, from_url

from weir.state.errors import ConditionalPutError, ObjectStoreAwayError, ObjectStoreError
from weir.state.storage.contract import File, Result, Staged, Target

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import RetryConfig

_CHUNK_BYTES, _CHUNKS_AT_ONCE = 8 << 20, 4
_WRITER = "weirwriter"
"""The attribute that tells a writer its own file from that of another."""
_AT_ONCE = 32
_PUTS = 3
"""How often a put is tried whose answer has been lost; what the server refuses for now is tried again below that."""
_DELTA_RETRY = {"retry_timeout": "15s", "backoff_config.max_backoff": "2s"}
"""How long delta-rs asks a store that is away, as ``_RETRY`` has it; left to itself, up to three minutes. polars asks
for as long by itself, and passes over these."""
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "s3": {"aws_conditional_put": "etag", "aws_allow_http": "true", **_DELTA_RETRY},
    "az": {"azure_allow_http": "true", **_DELTA_RETRY},
    "gs": _DELTA_RETRY,
}
"""What delta-rs and polars have to be told, by scheme; the rest they find in the environment, as obstore does."""
_MESSAGE = re.compile("<Message>(.*?)</Message>", re.DOTALL)
_AWAY = re.compile(r"HTTP error|error sending request|status code\W*(429|5(?!01)\d\d) ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""In the texts of obstore, delta-rs and polars, which have one client in common."""
_RETRY: RetryConfig = {
    "max_retries": 20,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""After that it is an error, which a run waits with, and says so."""
_REMOVED = ".removed"
"""The hidden folder of notes, one for each folder that is being deleted, of what was there."""
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

    def at_once(self, calls: Iterable[Callable[[], Result]]) -> Sequence[Result]:
        with self.begun(calls) as results:
            return results()

    @contextmanager
    def begun(self, calls: Iterable[Callable[[], Result]]) -> Iterator[Callable[[], Sequence[Result]]]:
        made: list[Future[Result]] = []
        with ThreadPoolExecutor(_AT_ONCE, "storage") as threads:
            try:
                made.extend(threads.submit(call) for call in calls)
                yield lambda: [each.result() for each in made]
            except BaseException:
                for each in made:
                    each.cancel()  # unless it has begun
                raise

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

    def stage(self, data: bytes) -> Staged:
        return Staged(data=data)

    def put_staged_if_absent(self, name: str, staged: Staged) -> bool:
        return self.put_if_absent(name, staged.data)

    def drop(self, staged: Staged) -> None:
        pass

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
        with target.open("xb") as file:
            while done < size_bytes:  # in parts, each of which has the time that a request has
                starts = range(done, size_bytes, _CHUNK_BYTES)[:_CHUNKS_AT_ONCE]
                sizes = [min(_CHUNK_BYTES, size_bytes - start) for start in starts]
                parts = self.at_once(
                    partial(self.get_range, name, start, size) for start, size in zip(starts, sizes, strict=True)
                )
                for part, size in zip(parts, sizes, strict=True):
                    file.write(part)
                    checksum, done = zlib.crc32(part, checksum), done + len(part)
                    if len(part) < size:
                        raise OSError(0, f"it ends {size_bytes - done:,} bytes early")
        return checksum

    def sync(self, names: Iterable[str] = ()) -> None:
        """What was put is durable."""

    def sync_content(self, name: str) -> None:
        """What was put is durable."""

    def delete(self, names: Iterable[str]) -> None:
        self._delete([self._key(name) for name in names])

    def delete_folder(self, name: str) -> None:
        """As the contract has it for Delta tables, whose logs go first; not in one step, so it is noted before."""
        self.remove_leftovers()
        folder = self._key(name)
        if found := self._tags(folder):
            note = f"{_REMOVED}/{uuid.uuid4().hex}.json"
            self.put(note, json.dumps({"folder": folder, "tags": found}).encode())
            self._delete_tables(found)
            self.delete([note])

    def remove_empty(self, name: str) -> None:
        """There are no empty folders."""

    def remove_leftovers(self) -> None:
        """Delete what killed calls of ``delete_folder`` have noted and left, unless it is another file by now. There is
        nothing else: a file that was not put in full is not there."""
        for key in self._tags(self._key(_REMOVED)):
            with suppress(FileNotFoundError), self._asking():  # another process was quicker
                noted = json.loads(bytes(obstore.get(self.store, key).bytes()))
                there = self._tags(noted["folder"])
                self._delete_tables([each for each, tag in noted["tags"].items() if there.get(each) == tag])
                self._delete([key])

    def _tags(self, folder: str) -> dict[str, str | None]:
        """What tells each file that is below a folder from another one by its name; by key."""
        with self._asking():
            return {found["path"]: found["e_tag"] for found in _found(self.store, folder, None, below=True)}

    def _delete_tables(self, keys: Collection[str]) -> None:
        """The newest entries of logs go first: what is there meanwhile is an older version of the table, or none."""
        logs = sorted((key for key in keys if "/_delta_log/" in key), reverse=True)
        self._delete(logs)
        self._delete([key for key in keys if "/_delta_log/" not in key])

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
        return from_url(root, client_options={"allow_http": True}, retry_config=_RETRY)
    except BaseError as error:
        raise _store_error(root, error) from None


def _found(store: ObjectStore, prefix: str, after: str | None, *, below: bool) -> Iterator[ObjectMeta]:
    if not below and after is None:
        yield from obstore.list_with_delimiter(store, prefix or None)["objects"]
        return
    for part in obstore.list(store, prefix or None, offset=after):
        yield from part


def _store_error(uri: str, error: Exception) -> ObjectStoreError:
    text = _COLOUR.sub("", str(error))
    reason, said = text.partition("\n")[0].partition("<?xml")[0].strip(" :"), _MESSAGE.search(text)
    if is_away(error):  # what was asked, and how often, says nothing of why there is no answer
        told = text.partition("\n\n")[0].replace("\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}", "").rpartition(" - ")[2]
        return ObjectStoreAwayError(uri, " ".join(told.split()).rstrip(":"))
    return ObjectStoreError(uri, f"{reason}: {said[1]}" if said else reason)


def is_away(error: BaseException) -> bool:
    """Whether something failed because an object store does not answer, or asks for time; it may answer later."""
    if isinstance(error, ObjectStoreError):
        return isinstance(error, ObjectStoreAwayError)
    is_of_client = isinstance(error, (BaseError, OSError, pl.exceptions.PolarsError, DeltaError))
    return is_of_client and _AWAY.search(_COLOUR.sub("", str(error))) is not None


def away(uri: str, error: Exception) -> ObjectStoreError:
    """An error of which ``is_away`` says so, in a sentence."""
    return error if isinstance(error, ObjectStoreError) else _store_error(uri, error)


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
