"""Errors by the reaction they call for: restore the task, give up ownership, or stop."""

from __future__ import annotations

from weir.state.types import StateId


class StateError(Exception):
    """Base class of the errors that ``state`` raises."""


class TaskCorruptedError(StateError):
    """A task's local state cannot be trusted: quarantine its folder and restore it from the changelog."""

    def __init__(self, task_id: str, folder: str, reason: str) -> None:
        super().__init__(task_id, folder, reason)
        self.task_id, self.folder, self.reason = task_id, folder, reason

    def __str__(self) -> str:
        return (
            f"task {self.task_id}: local state in {self.folder} cannot be trusted: {self.reason}; "
            "the folder is moved to quarantine, and the task is restored from its changelog"
        )


class OwnStoreError(StateError):
    """A user's store behind a store of a task failed, or cannot do what is asked of it."""

    def __init__(self, task_id: str, store: str, reason: str) -> None:
        super().__init__(task_id, store, reason)
        self.task_id, self.store, self.reason = task_id, store, reason

    def __str__(self) -> str:
        return f"task {self.task_id}: your own store behind {self.store!r} {self.reason}"


class OwnStoreBehindError(StateError):
    """Users' stores lack committed rows, which are in the changelogs: hand these over, then settle again."""

    def __init__(self, task_id: str, above: dict[str, int], base: StateId) -> None:
        super().__init__(task_id, above, base)
        self.task_id, self.above, self.base = task_id, above, base
        """By store, the epoch above which rows are missing, up to ``base``; -1 for all."""

    def __str__(self) -> str:
        return f"task {self.task_id}: your own stores {', '.join(self.above)} lack rows of commits up to {self.base}"


class FencedError(StateError):
    """Another driver has claimed the application: write nothing more and stop (PROTOCOL 3)."""

    def __init__(self, application: str, mine: str, found: str) -> None:
        super().__init__(application, mine, found)
        self.application, self.mine, self.found = application, mine, found

    def __str__(self) -> str:
        return (
            f"application {self.application!r}: this driver last wrote version {self.mine}, but the commit log is "
            f"at {self.found}: a newer driver has taken over, so this one stops and writes nothing more"
        )


class EpochLimitError(StateError):
    """The number of an epoch no longer fits beside its generation in a transaction version (PROTOCOL 3)."""

    def __init__(self, application: str, limit: int) -> None:
        super().__init__(application, limit)
        self.application, self.limit = application, limit

    def __str__(self) -> str:
        return (
            f"application {self.application!r} has used up its {self.limit:,} epochs, so nothing more was committed; "
            f"begin again with `weir reset {self.application}`"
        )


class TableBehindError(StateError):
    """A table lacks files that the commit log promised and that no longer exist: it cannot be brought up to date."""

    def __init__(self, application: str, table: str, version: str, missing: str) -> None:
        super().__init__(application, table, version, missing)
        self.application, self.table, self.version, self.missing = application, table, version, missing

    def __str__(self) -> str:
        return (
            f"table {self.table!r}: commit {self.version} names the file {self.missing}, which is neither in "
            f"the table nor on disk; restore the file from a backup, or start over with `weir reset {self.application}`"
        )


class TableLostError(StateError):
    """A table is so far behind that the commit log no longer lists the files it lacks."""

    def __init__(self, application: str, table: str, version: str, promised: str) -> None:
        super().__init__(application, table, version, promised)
        self.application, self.table, self.version, self.promised = application, table, version, promised

    def __str__(self) -> str:
        return (
            f"table {self.table!r} is at commit {self.version}, but the commit log expects {self.promised} and no "
            "longer lists the files in between: the table's Delta log was lost or restored from an older copy; restore "
            f"the table's folder from a backup, or start over with `weir reset {self.application}`"
        )


class DamagedFileError(StateError):
    """A file of a table in the warehouse cannot be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"the file {self.path} cannot be read: {self.reason}; put it back from a backup that was made after it was "
            "written"
        )


class TableFileError(StateError):
    """A file that a table names is gone, of another size, or cannot be read as the table's: whoever reads it fails."""

    def __init__(self, application: str, table: str, path: str, reason: str) -> None:
        super().__init__(application, table, path, reason)
        self.application, self.table, self.path, self.reason = application, table, path, reason

    def __str__(self) -> str:
        return (
            f"table {self.table!r} of application {self.application!r} names the file {self.path}: {self.reason}; put "
            f"it back from a backup, or start over with `weir reset {self.application}`"
        )


class DeltaLogGoneError(StateError):
    """A table's Delta log was removed, or replaced by an older copy, under a process that uses it."""

    def __init__(self, application: str, log: str) -> None:
        super().__init__(application, log)
        self.application, self.log = application, log

    def __str__(self) -> str:
        return (
            f"the Delta log {self.log} no longer has what application {self.application!r} has read there: it was "
            "removed, or replaced by an older copy, while a process was using it; put the application's whole "
            f"warehouse folder back as it was at one moment, or start over with `weir reset {self.application}`"
        )


class TableAheadError(StateError):
    """A table has commits that the commit log does not have: a start would repeat them, and their rows would double."""

    def __init__(self, application: str, table: str, version: str, newest: str) -> None:
        super().__init__(application, table, version, newest)
        self.application, self.table, self.version, self.newest = application, table, version, newest

    def __str__(self) -> str:
        return (
            f"table {self.table!r} of application {self.application!r} has commit {self.version}, but the newest one "
            f"in the commit log is {self.newest}: the log was lost or restored from an older copy; put the "
            "application's whole warehouse folder back as it was at one moment, or start over with "
            f"`weir reset {self.application}`"
        )


class SwapRefusedError(StateError):
    """A backfill cannot be swapped in; nothing was changed."""

    def __init__(self, application: str, backfill: str, reason: str) -> None:
        super().__init__(application, backfill, reason)
        self.application, self.backfill, self.reason = application, backfill, reason

    def __str__(self) -> str:
        return f"backfill {self.backfill!r} of {self.application!r} was not swapped in: {self.reason}"


class FormatVersionError(StateError):
    """Data on disk was written by a newer or unknown version of Weir."""

    def __init__(self, application: str, where: str, wanted: int, found: int) -> None:
        super().__init__(application, where, wanted, found)
        self.application, self.where, self.wanted, self.found = application, where, wanted, found

    def __str__(self) -> str:
        return (
            f"{self.where} has format version {self.found}, but this Weir reads {self.wanted}; "
            f"run the version that wrote it, or start over with `weir reset {self.application}`"
        )


class FencedStoreError(StateError):
    """A newer generation has claimed or settled this store: this process belongs to an older driver and stops
    (PROTOCOL 6)."""

    def __init__(self, task_id: str, mine: int, found: int) -> None:
        super().__init__(task_id, mine, found)
        self.task_id, self.mine, self.found = task_id, mine, found

    def __str__(self) -> str:
        return (
            f"task {self.task_id}: this is generation {self.mine}, but generation {self.found} has taken over the "
            "local store with a newer driver, so nothing is written"
        )


class MapFullError(StateError):
    """The LMDB map has no room for an epoch's writes; nothing was written. Grow the map and apply again."""

    def __init__(self, task_id: str, map_bytes: int) -> None:
        super().__init__(task_id, map_bytes)
        self.task_id, self.map_bytes = task_id, map_bytes

    def __str__(self) -> str:
        return (
            f"task {self.task_id}: the store's map of {self.map_bytes} bytes is full; "
            "nothing was written; the map grows and the epoch runs again"
        )


class DiskFullError(StateError):
    """A disk has no room for what is to be written; nothing of it counts (PROTOCOL 18)."""

    def __init__(self, what: str, folder: str, needed: int | None, free: int, reason: str = "") -> None:
        """``what`` is to be written, say by "task 0_0"; ``needed`` is None if it is not known how much that is."""
        super().__init__(what, folder, needed, free, reason)
        self.what, self.folder, self.needed, self.free, self.reason = what, folder, needed, free, reason

    def __str__(self) -> str:
        wanted = "which is not enough" if self.needed is None else f"but {self.needed:,} may be needed"
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"{self.what}: the disk of {self.folder} has {self.free:,} bytes free, {wanted}{why}; nothing of it "
            "counts: free some space there, and a run goes on by itself, while a command is given again"
        )


class NetworkFileSystemError(StateError):
    """The state folder is on a network file system, where other hosts can change memory-mapped files."""

    def __init__(self, folder: str, kind: str) -> None:
        super().__init__(folder, kind)
        self.folder, self.kind = folder, kind

    def __str__(self) -> str:
        return (
            f"{self.folder} is on a network file system ({self.kind}), which cannot hold local state safely; "
            "choose a folder on a local disk with `--dir DIR`"
        )


class UnknownStoreError(StateError):
    """The task has no store of this name."""

    def __init__(self, store: str, known: tuple[str, ...]) -> None:
        super().__init__(store, known)
        self.store, self.known = store, known

    def __str__(self) -> str:
        return f"there is no store {self.store!r} here; the task has {', '.join(map(repr, self.known)) or 'none'}"


class RowFormatError(StateError):
    """Stored bytes do not fit the declared schema, which has changed since they were written."""

    def __init__(self, columns: tuple[str, ...], reason: str) -> None:
        super().__init__(columns, reason)
        self.columns, self.reason = columns, reason

    def __str__(self) -> str:
        return (
            f"stored rows do not fit the columns {', '.join(self.columns)}: {self.reason}; another version of the "
            "program wrote them: run this one with `weir run MODULE:APP`, or read them with the one that ran last"
        )


class PositionsFileError(StateError):
    """A file of offsets cannot be read."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path, self.line, self.reason = path, line, reason

    def __str__(self) -> str:
        return (
            f"{self.path}, line {self.line}: {self.reason}; restore the file from a copy, or remove it if the store "
            "may start without offsets"
        )


class DeletionsGoneError(StateError):
    """A store that follows a changelog is so far behind that it would keep rows that were deleted meanwhile."""

    def __init__(self, store: str, table: str, epoch: int, horizon: int) -> None:
        super().__init__(store, table, epoch, horizon)
        self.store, self.table, self.epoch, self.horizon = store, table, epoch, horizon

    def __str__(self) -> str:
        return (
            f"store {self.store!r} has followed table {self.table!r} up to epoch {self.epoch - 1}, but compaction has "
            f"dropped deletions up to epoch {self.horizon}; clear the store and its offset, so that it starts over"
        )


class TableReplacedError(StateError):
    """A store has followed a changelog that was removed, and another one has its name."""

    def __init__(self, store: str, table: str) -> None:
        super().__init__(store, table)
        self.store, self.table = store, table

    def __str__(self) -> str:
        return (
            f"store {self.store!r} has followed a table {self.table!r} that was removed, and may have rows that the "
            "one there now does not know of; clear the store and its offset, so that it starts over"
        )


class HistoryGoneError(StateError):
    """A changelog can no longer give the state as of an epoch: compaction has merged it with newer rows."""

    def __init__(self, table: str, epoch: int, oldest: int) -> None:
        super().__init__(table, epoch, oldest)
        self.table, self.epoch, self.oldest = table, epoch, oldest

    def __str__(self) -> str:
        return (
            f"table {self.table!r} no longer has its state as of epoch {self.epoch}: compaction has merged it with "
            f"newer rows; ask for epoch {self.oldest} or later"
        )


class TransactionClosedError(StateError):
    """A session was used after it had ended."""

    def __str__(self) -> str:
        return "the session has ended and its snapshot is gone; begin a new one with TaskStore.session()"


class TableSchemaError(StateError):
    """A table in the warehouse cannot get the columns or keys that the program writes."""

    def __init__(self, application: str, table: str, reason: str) -> None:
        super().__init__(application, table, reason)
        self.application, self.table, self.reason = application, table, reason

    def __str__(self) -> str:
        if self.table.startswith("_outbox/"):
            sink = self.table.removeprefix("_outbox/")
            return (
                f"the outbox of the sink {sink!r} of {self.application!r} cannot take this program's rows: "
                f"{self.reason}; columns may only be added: keep the old ones and the kind of the sink, or give the "
                f'sink another name, for example name="{sink}-2", which gets what comes from now on'
            )
        way_out = (
            f"run the version of Weir that wrote it, or start over with `weir reset {self.application}`"
            if self.table.startswith("_")
            else "columns may only be added, to structs too: keep the old ones, or write to a table with another name"
        )
        return f"table {self.table!r} of {self.application!r} cannot take this program's rows: {self.reason}; {way_out}"


class TableModeError(TableSchemaError):
    """A table was written with another mode of ``to_delta`` than the one the program asks for."""

    def __init__(self, application: str, table: str, wanted: str) -> None:
        super().__init__(application, table, wanted)
        self.wanted, self.found = wanted, "append" if wanted == "upsert" else "upsert"

    def __str__(self) -> str:
        name = f"{self.table}_{self.wanted}"
        return (
            f'table {self.table!r} was written with mode="{self.found}", but the program asks for '
            f'mode="{self.wanted}"; choose another name, for example to_delta("{name}", mode="{self.wanted}"), which '
            f"gets what is updated from now on, or start over with `weir reset {self.application}`, after which the "
            "topics are read again"
        )


class UpsertsBusyError(StateError):
    """Others kept writing to a table of upserts while it was brought up to date; it is as it was."""

    def __init__(self, table: str, attempts: int) -> None:
        super().__init__(table, attempts)
        self.table, self.attempts = table, attempts

    def __str__(self) -> str:
        return (
            f"table {self.table!r}: another writer changed it during each of {self.attempts} attempts to bring it up "
            "to date; stop what writes to it, since only the application does"
        )


class TableFeatureError(StateError):
    """A table was altered so that it needs writer features of Delta that Weir does not support."""

    def __init__(self, application: str, folder: str, features: list[str]) -> None:
        super().__init__(application, folder, features)
        self.application, self.folder, self.features = application, folder, features

    def __str__(self) -> str:
        return (
            f"the Delta table {self.folder} of {self.application!r} requires its writers to support "
            f"{', '.join(self.features)}, which Weir does not; copy the table if you need its rows, and start over "
            f"with `weir reset {self.application}`"
        )


class AppendOnlyError(StateError):
    """Rows would have to be replaced or removed in a table that its owner has made append-only; it is as it was."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return (
            f"the Delta table {self.folder} is append-only (delta.appendOnly), but rows of it have to be replaced or "
            "removed; set that property to false, and try again"
        )


class ObjectStoreError(StateError, OSError):
    """An object store does not answer, or refuses what is asked; or the environment does not say enough of it."""

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__()
        self.args = uri, reason
        self.uri, self.reason = uri, reason

    def __str__(self) -> str:
        return (
            f"the object store of {self.uri} cannot be used: {self.reason}; check the bucket, and the credentials, "
            "region and endpoint in the environment: AWS_*, AZURE_* or GOOGLE_* variables"
        )


class ObjectStoreAwayError(ObjectStoreError):
    """An object store does not answer, or asks for time; it may answer later."""

    def __str__(self) -> str:
        return (
            f"the object store of {self.uri} does not answer: {self.reason}; check the network, and the endpoint in "
            "the environment, such as AWS_ENDPOINT_URL"
        )


class ConditionalPutError(StateError):
    """An object store lets a second writer of a name win, so that two drivers could both commit."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.uri = uri

    def __str__(self) -> str:
        return (
            f"the object store of {self.uri} does not refuse a second put of the same name (If-None-Match), by which "
            "one of two drivers would win; use a store that does, such as Amazon S3, or a folder of a local disk"
        )
