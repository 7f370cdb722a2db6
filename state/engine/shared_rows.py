"""Rows that the processes of a host share: one of them writes, in turn, and each reads the snapshot that it has taken.

Who takes them to be what belongs to the caller: the rows can be had again from elsewhere, up to the positions that are
written with them, so nothing here is synced, and a restart of the machine begins anew. Each driver's generation has a
folder of its own. No process waits for another one: whoever does not get the turn to write goes without.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

import lmdb
import msgspec

from weir.state.engine.environment import (
    DATA,
    FILE_MODE,
    FREE_DISK_RESERVE_BYTES,
    begin,
    boot_id,
    refuse_network_file_system,
)
from weir.state.engine.quarantine import is_open
from weir.state.engine.ranges import Row, rows_between
from weir.state.errors import StateError
from weir.state.full_disk import disk_full, free_bytes, require_room

FOLDER = "_global_tables"
"""Below an application's state folder, where each table has a folder."""
MAP_BYTES = 1 << 36
"""Address space, not memory: the file has what was written. Growing it would need that no process reads."""
MAX_READERS = 4096
_OPENING_BYTES = 1 << 20
"""More than opening takes; under a lock file that cannot grow the process would die."""
_ABOUT = b"\xff"
"""A key beside those of the rows."""
_TURN = "turn.lock"


class SharedRowsFullError(StateError):
    """There are more rows than their file may have."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return (
            f"the rows in {self.folder} have reached {MAP_BYTES >> 30} GiB, the most that a global table may have; "
            "join a table instead, of which each task has a part"
        )


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is written with the rows."""

    positions: dict[int, int] = {}
    """By partition, the offset before which every record is in the rows."""
    is_whole: bool = False
    """Whether the rows have once reached what an epoch asked for: before that they are being loaded."""


_ABOUTS = msgspec.json.Decoder(About)


class Snapshot:
    """The rows as they were written last when it was taken; implements ``weir.state.engine.contract.StateView``.

    Close it soon: meanwhile LMDB cannot use the pages again that are written since.
    """

    def __init__(self, environment: lmdb.Environment, stores: Sequence[str]) -> None:
        self._txn, self._prefixes = begin(environment), _prefixes(stores)
        self._database = environment.open_db()
        self.about = _about(self._txn)

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix = self._prefixes[store]
        wanted = [prefix + key for key in keys]
        with self._txn.cursor() as cursor:
            found = cursor.getmulti(wanted)
        if len(found) == len(keys):
            return [value for _, value in found]
        return list(map(dict(found).get, wanted))

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        prefix = self._prefixes[store]
        end = bytes([prefix[0] + 1]) if upper is None else prefix + upper
        rows = rows_between(self._txn, self._database, prefix + lower, end, reverse)
        return ((key[1:], value) for key, value in rows)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        return next(self.scan(store, lower, upper, reverse=reverse), None)

    def count(self, store: str) -> int:
        return sum(1 for _ in self.scan(store))

    def close(self) -> None:
        self._txn.abort()


class SharedRows:
    """The rows of ``generation`` below ``folder``, which is that of one table; ``stores`` are the stores that it has.

    All are in LMDB's unnamed database, which nobody has to make, under keys that begin with the number of the store.
    """

    _open: ClassVar[dict[Path, tuple[lmdb.Environment, tuple[int, int]]]] = {}
    """What this process has open, which may open an environment only once, with the file that it was opened from."""
    _pid: ClassVar[int] = 0

    def __init__(self, folder: Path, generation: int, stores: Sequence[str]) -> None:
        self._above, self._generation, self._stores = folder, generation, tuple(stores)
        self._folder = folder / f"{generation}-{boot_id()}"

    def snapshot(self) -> Snapshot:
        """The rows as of now; none if nobody has written any."""
        return Snapshot(self._live(), self._stores)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether it is this process's turn to write, until the end of the block; it is nobody else's then."""
        self._live()
        with (self._folder / _TURN).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def write(self, changes: Mapping[str, Mapping[bytes, bytes | None]], before: About, about: About) -> bool:
        """Put rows, and delete those that are None, by store, in one transaction with ``about``; in this process's
        turn alone. False, with nothing written, if the rows are not those of ``before`` any more: a file that is lost
        begins anew, with other turns.

        Raises:
            SharedRowsFullError: They take more than ``MAP_BYTES``.
            DiskFullError: There is no room for them; the rows are as before.
        """
        what = f"global table {self._above.name}"
        require_room(self._above, what, FREE_DISK_RESERVE_BYTES)
        try:
            with begin(self._live(), write=True) as txn:
                if _about(txn) != before:
                    return False
                for store, rows in changes.items():
                    prefix = _prefixes(self._stores)[store]
                    with txn.cursor() as cursor:
                        cursor.putmulti(sorted((prefix + key, row) for key, row in rows.items() if row is not None))
                    for key in sorted(key for key, row in rows.items() if row is None):
                        txn.delete(prefix + key)
                txn.put(_ABOUT, msgspec.json.encode(about))
        except lmdb.MapFullError:
            raise SharedRowsFullError(str(self._folder)) from None
        except lmdb.Error as error:
            if free_bytes(self._above) < FREE_DISK_RESERVE_BYTES:  # LMDB calls what was written in part an I/O error
                raise disk_full(error, what, [self._above], FREE_DISK_RESERVE_BYTES) from error
            raise
        return True

    def remove_older(self) -> None:
        """Remove the rows of older generations, and of this machine before it restarted; who reads them reads on."""
        for left in self._above.iterdir():
            if left != self._folder and 0 <= _generation(left) <= self._generation:
                shutil.rmtree(left, ignore_errors=True)

    def _live(self) -> lmdb.Environment:
        """The environment whose file is in the folder now, so that nobody goes on for long with one that is lost."""
        file, key = self._folder / DATA, self._folder.resolve()
        known = SharedRows.opened(self._folder)
        if known is None:
            refuse_network_file_system(self._folder)
            require_room(self._folder, f"global table {self._above.name}", _OPENING_BYTES)
            self._folder.mkdir(parents=True, exist_ok=True)
            environment = lmdb.open(
                str(self._folder),
                map_size=MAP_BYTES,
                max_readers=MAX_READERS,
                sync=False,
                mode=FILE_MODE,
            )
            environment.reader_check()  # of processes that died
            if (found := _identity(file)) is None:  # lost again just now
                raise FileNotFoundError(file)
            known, self._open[key] = environment, (environment, found)
        return known

    @classmethod
    def opened(cls, folder: Path) -> lmdb.Environment | None:
        """What this process has open of a folder, if its file is still there."""
        if cls._pid != os.getpid():  # environments of a parent process must not be used after a fork
            cls._open, cls._pid = {}, os.getpid()
        known = cls._open.get(folder.resolve())
        return known[0] if known is not None and known[1] == _identity(folder / DATA) else None


@contextmanager
def newest_rows(folder: Path, stores: Sequence[str]) -> Iterator[Snapshot | None]:
    """A snapshot of the newest generation's rows below a table's folder, for any process; None unless they are whole.
    Hold it for less than a second."""
    boot, found = boot_id(), None
    if folder.is_dir():
        found = max((each for each in folder.iterdir() if _generation(each) >= 0), key=_generation, default=None)
    if found is None or found.name.partition("-")[2] != boot:
        yield None
        return
    with ExitStack() as held:
        snapshot = None
        try:
            environment = SharedRows.opened(found)
            if environment is None:
                environment = lmdb.open(str(found), readonly=True, create=False, mode=FILE_MODE)
                held.callback(environment.close)
            snapshot = Snapshot(environment, stores)
            held.callback(snapshot.close)
        except lmdb.Error:  # it is being made, or removed
            snapshot = None
        yield snapshot if snapshot is not None and snapshot.about.is_whole else None


def shared_tables(state_folder: Path) -> Iterator[Path]:
    """The folders of the tables that have rows below an application's state folder."""
    yield from (state_folder / FOLDER).glob("*/")


def newest_user(folder: Path) -> int:
    """The newest generation that has rows in a table's folder; 0 if none has."""
    return max((0, *map(_generation, folder.iterdir())))


def is_in_use(folder: Path) -> bool:
    """Whether a process has rows in a table's folder open, of whichever generation; not for one that has itself, as
    ``is_open``."""
    return any(is_open(each) for each in folder.iterdir() if _generation(each) >= 0)


def _prefixes(stores: Sequence[str]) -> dict[str, bytes]:
    return {store: bytes([number]) for number, store in enumerate(stores)}


def _about(txn: lmdb.Transaction[bytes]) -> About:
    content = txn.get(_ABOUT)
    return About() if content is None else _ABOUTS.decode(content)


def _generation(folder: Path) -> int:
    number = folder.name.partition("-")[0]
    return int(number) if number.isdigit() else -1


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
