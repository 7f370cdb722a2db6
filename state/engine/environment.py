"""An instance folder and its LMDB environment: whether the files can be trusted, and how they are opened.

The rules are PROTOCOL 19: the crash of a process loses nothing; a restart of the machine may, unless a clean stop left
a synced mark. The environment's contents belong to ``weir.state.engine.task_store``, the names of folders to
``weir.state.engine.instances``.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lmdb
import msgspec

from weir.state.engine.processes import is_alive, own_mark
from weir.state.errors import NetworkFileSystemError, TaskCorruptedError
from weir.state.full_disk import disk_full, is_disk_full, require_room

FORMAT_VERSION = 1
INITIAL_MAP_BYTES = 64 << 20
PAGE_BYTES = 4096
_LARGEST_BESIDE_OTHERS = PAGE_BYTES // 4
"""LMDB puts a value that is larger than about half a page into pages of its own."""
MAX_DATABASES = 256
MAX_DEATHS = 3
FREE_DISK_RESERVE_BYTES = 32 << 20
_OPENING_BYTES = 1 << 20
"""More than opening an instance writes: its lock file, a mark, its identity."""

IDENTITY = "instance.json"
_UNPROVEN = "unproven"
DATA = "data.mdb"
LOCK = "lock.mdb"
FILE_MODE = 0o666
"""Of what LMDB creates, less what the process's umask takes away."""
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK_FILE_SYSTEMS = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.sshfs",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
}
_META = struct.Struct("<16xII8xQ96xQQ")
"""A page header, then LMDB's magic, data version, map size, last page and transaction id."""
_MAGIC = 0xBEEFC0DE


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The format of an instance, and the boot and device it was written on; kept beside its environment."""

    format_version: int
    boot_id: str
    device: int
    clean_txn: int | None = None
    """The transaction that a clean stop synced to disk; None while the instance is in use."""


_IDENTITIES = msgspec.json.Decoder(Identity)


def boot_id() -> str:
    """The kernel's id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def refuse_network_file_system(folder: Path) -> None:
    """Raise ``NetworkFileSystemError`` when ``folder`` (or its nearest existing parent) is on one."""
    where = folder.resolve()
    while not where.exists():
        where = where.parent
    device = os.stat(where).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text().splitlines():
        if wanted not in line:
            continue
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            kind = rest.split()[0]
            if kind in _NETWORK_FILE_SYSTEMS:
                raise NetworkFileSystemError(str(folder), kind)


def create_environment(folder: Path, task_id: str) -> lmdb.Environment:
    """Create an instance folder, which must not exist yet, with an empty environment.

    Raises:
        DiskFullError: There is no room for it, and no folder.
    """
    refuse_network_file_system(folder)
    require_room(folder, f"task {task_id}", FREE_DISK_RESERVE_BYTES)
    folder.mkdir(parents=True)
    try:
        write_identity(folder, clean_txn=None)
        return lmdb.open(
            str(folder), map_size=INITIAL_MAP_BYTES, max_dbs=MAX_DATABASES, sync=False, writemap=True, mode=FILE_MODE
        )
    except BaseException as error:  # half of an instance would count as a damaged one
        shutil.rmtree(folder, ignore_errors=True)
        if is_disk_full(error):
            raise disk_full(error, f"task {task_id}", [folder], FREE_DISK_RESERVE_BYTES) from error
        raise


@contextmanager
def trusted_environment(folder: Path, task_id: str) -> Iterator[lmdb.Environment]:
    """Open an existing instance for writing; the caller checks its contents inside the ``with`` block.

    LMDB has no checksums on its pages, and some damage makes it kill the process. So the process marks an instance
    that it opens until ``prove_sound``; once three processes have died before that, the instance counts as corrupted.
    On any error the environment is closed again.

    Raises:
        TaskCorruptedError: By the rules of PROTOCOL 19, or because LMDB refuses the files.
        DiskFullError: The folder's disk is full: under a lock file that cannot grow the process would die.
        NetworkFileSystemError: Another host may be writing here.
    """

    def corrupted(reason: str) -> TaskCorruptedError:
        return TaskCorruptedError(task_id, str(folder), reason)

    if not (folder / DATA).is_file():
        raise missing(folder, task_id)
    refuse_network_file_system(folder)
    identity = _read_identity(folder, task_id)
    if identity.clean_txn is None:
        if identity.boot_id != boot_id():
            raise corrupted("the machine has restarted since it was written, and it was not closed cleanly")
        if identity.device != os.stat(folder).st_dev:
            raise corrupted("it was moved from another device")
    if reason := _damage(folder / DATA):
        raise corrupted(reason)
    died = [mark for mark in folder.glob(f"{_UNPROVEN}.*") if not is_alive(_process_of(mark))]
    if len(died) >= MAX_DEATHS:
        raise corrupted(f"{len(died)} processes died with it open, before they finished an epoch")
    require_room(folder, f"task {task_id}", _OPENING_BYTES)
    mark = _mark(folder)
    suspect(folder)
    environment = None
    try:
        size = max(INITIAL_MAP_BYTES, (folder / DATA).stat().st_size)
        environment = lmdb.open(
            str(folder), map_size=size, max_dbs=MAX_DATABASES, sync=False, writemap=True, create=False, mode=FILE_MODE
        )
        last = environment.info()["last_txnid"]
        if identity.clean_txn is not None and identity.boot_id != boot_id() and identity.clean_txn != last:
            raise corrupted(f"it was written after its clean stop (transaction {last}, marked {identity.clean_txn})")
        environment.reader_check()
        yield environment
        if identity.clean_txn is not None:
            write_identity(folder, clean_txn=None)
    except BaseException as error:
        if environment is not None:
            environment.close()
        mark.unlink(missing_ok=True)
        if is_disk_full(error):
            raise disk_full(error, f"task {task_id}", [folder]) from error
        if isinstance(error, lmdb.Error):
            raise corrupted(f"LMDB: {error}") from error
        raise


def missing(folder: Path, task_id: str) -> TaskCorruptedError:
    """The error for an instance without a data file."""
    if (folder / DATA).is_symlink():
        reason = "its stores were in memory, which a restart of the machine or its container has emptied"
        return TaskCorruptedError(task_id, str(folder), reason)
    return TaskCorruptedError(task_id, str(folder), "the folder is missing or holds no data")


def suspect(folder: Path) -> None:
    """From now on the death of this process counts against the instance, until ``prove_sound`` or ``spare``."""
    _mark(folder).touch()


def spare(folder: Path) -> None:
    """The death of this process would say nothing about the instance: it only waits."""
    _mark(folder).unlink(missing_ok=True)


def prove_sound(folder: Path) -> None:
    """An epoch was carried out on the instance: earlier deaths no longer count, nor would the death of this process."""
    for mark in folder.glob(f"{_UNPROVEN}.*"):
        if mark == _mark(folder) or not is_alive(_process_of(mark)):
            mark.unlink(missing_ok=True)


def release(folder: Path) -> None:
    """This process has closed the instance, so its death no longer counts against the instance."""
    _mark(folder).unlink(missing_ok=True)


def write_identity(folder: Path, *, clean_txn: int | None) -> None:
    """Write the instance's identity, synced, by an atomic replace."""
    identity = Identity(
        format_version=FORMAT_VERSION, boot_id=boot_id(), device=os.stat(folder).st_dev, clean_txn=clean_txn
    )
    replace_file(folder / IDENTITY, msgspec.json.encode(identity))


def unmark(folder: Path, task_id: str) -> None:
    """The instance is in use: another process may have left the mark of a clean stop since this one has opened it."""
    if _read_identity(folder, task_id).clean_txn is not None:
        write_identity(folder, clean_txn=None)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file so that readers, even after a crash, see the old or the new content, never part of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing, durably: each name is on disk before the next one is made."""
    if folder.exists():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_free_disk(folder: Path, task_id: str, environment: lmdb.Environment, records: int, large: int = 0) -> None:
    """Check that the disk has room for the worst case: when it fills up under a write map, the process dies (SIGBUS).

    ``large`` is how many bytes the values of ``records`` that need pages of their own take (``large_bytes``).

    Raises:
        DiskFullError: There may not be enough.
    """
    data = os.stat(folder / DATA)
    room = max(0, environment.info()["map_size"] - data.st_blocks * 512)
    needed = FREE_DISK_RESERVE_BYTES + min(room, 2 * records * PAGE_BYTES + large)
    require_room(folder / DATA, f"task {task_id}", needed)


def large_bytes(values: Iterable[bytes | None]) -> int:
    """The bytes of the pages that values take which do not fit beside others in a page."""
    present = list(filter(None, values))
    if max(map(len, present), default=0) <= _LARGEST_BESIDE_OTHERS:
        return 0
    return sum((size // PAGE_BYTES + 2) * PAGE_BYTES for size in map(len, present) if size > _LARGEST_BESIDE_OTHERS)


def begin(environment: lmdb.Environment, *, write: bool = False) -> lmdb.Transaction[bytes]:
    """Begin a transaction; follows the map if another process has grown it (PROTOCOL 18)."""
    try:
        return environment.begin(write=write)
    except lmdb.MapResizedError:
        environment.set_mapsize(0)
        return environment.begin(write=write)


def _mark(folder: Path) -> Path:
    return folder / f"{_UNPROVEN}.{own_mark()}"


def _process_of(mark: Path) -> str:
    return mark.name.removeprefix(f"{_UNPROVEN}.")


def _read_identity(folder: Path, task_id: str) -> Identity:
    try:
        identity = _IDENTITIES.decode((folder / IDENTITY).read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise TaskCorruptedError(task_id, str(folder), f"{IDENTITY} cannot be read ({error})") from error
    if identity.format_version != FORMAT_VERSION:
        raise TaskCorruptedError(
            task_id,
            str(folder),
            f"it has format version {identity.format_version}, but this Weir reads {FORMAT_VERSION}",
        )
    return identity


def _damage(data: Path) -> str:
    """What is wrong with the data file, empty if nothing; mapping a damaged file could kill the process."""
    size = data.stat().st_size
    with data.open("rb") as file:
        pages = [file.read(PAGE_BYTES) for _ in range(2)]
    metas = [_META.unpack_from(page) for page in pages if len(page) == PAGE_BYTES]
    metas = [meta for meta in metas if meta[0] == _MAGIC]
    if not metas:
        return f"{data.name} has no LMDB header"
    last_page = max(metas, key=lambda meta: meta[4])[3]
    if size < (last_page + 1) * PAGE_BYTES:
        return f"{data.name} has {size} bytes, but {(last_page + 1) * PAGE_BYTES} were written"
    return ""
