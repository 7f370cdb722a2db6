"""Why a backfill is refused; each text names what was found and the way out."""

from __future__ import annotations


class BackfillError(Exception):
    """A backfill cannot be made or found; the outputs are unchanged."""


class NoDayOutputsError(BackfillError):
    """The application has no output whose rows belong to days."""

    def __init__(self, application: str, left_out: str) -> None:
        super().__init__(application, left_out)
        self.application, self.left_out = application, left_out

    def __str__(self) -> str:
        return (
            f"application {self.application!r} has no output that the records of some days alone determine: "
            f"{self.left_out}; compute all of it with `weir backfill run {self.application} --everything`"
        )


class HistoryLostError(BackfillError):
    """A topic may have lost some of the days' records."""

    def __init__(self, application: str, topic: str, partition: int, oldest: int) -> None:
        super().__init__(application, topic, partition, oldest)
        self.application, self.topic, self.partition, self.oldest = application, topic, partition, oldest

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}, partition {self.partition}, begins at offset {self.oldest} and has no record "
            "from before the days: some of their records may have expired by retention, and a backfill of "
            f"{self.application!r} would replace complete days with incomplete ones; choose later days, or a smaller "
            f"margin: `weir backfill run {self.application} FIRST END --margin-hours 1`"
        )


class BeginningLostError(BackfillError):
    """A topic has lost its beginning, without which stores and totals would be different."""

    def __init__(self, application: str, topic: str, partition: int, oldest: int) -> None:
        super().__init__(application, topic, partition, oldest)
        self.application, self.topic, self.partition, self.oldest = application, topic, partition, oldest

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}, partition {self.partition}, begins at offset {self.oldest}: earlier records "
            f"have expired by retention, and the stores and totals of {self.application!r} would cover only the "
            'rest; backfill days that are still there, or give the program another id, as in Application("other-id", '
            "...), and run it over what is left"
        )


class TopicReplacedError(BackfillError):
    """A topic is no longer the one that the application has read (PROTOCOL 28)."""

    def __init__(self, application: str, topic: str) -> None:
        super().__init__(application, topic)
        self.application, self.topic = application, topic

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and recreated after {self.application!r} had read it, so the records "
            f"that a backfill needs are gone; read them from files with `weir backfill run {self.application} FIRST "
            f"END --from TOPIC=PATH`, or from brokers that still have them with `weir backfill run {self.application} "
            "FIRST END --bootstrap-servers HOST:PORT`"
        )


class UnloggedStoreError(BackfillError):
    """A store has no changelog, by which a backfill of everything brings its stores along."""

    def __init__(self, application: str, store: str) -> None:
        super().__init__(application, store)
        self.application, self.store = application, store

    def __str__(self) -> str:
        return (
            f"application {self.application!r} has the store {self.store!r}, which has no changelog, and a backfill of "
            "everything brings stores along as rows of their changelogs; backfill the program with logging=True for "
            "it, and leave that out again once it has run after the swap"
        )


class NoCutError(BackfillError):
    """The live application's newest commit cannot be the cut."""

    def __init__(self, application: str, reason: str) -> None:
        super().__init__(application, reason)
        self.application, self.reason = application, reason

    def __str__(self) -> str:
        return f"application {self.application!r} cannot be backfilled now: {self.reason}"


class SourceFilesError(BackfillError):
    """A table or files cannot replace a topic."""

    def __init__(self, topic: str, path: str, reason: str) -> None:
        super().__init__(topic, path, reason)
        self.topic, self.path, self.reason = topic, path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}, for topic {self.topic!r}, {self.reason}; name a Delta table's folder, or Parquet files, "
            "with the columns of the topic's keys and values and a time (--time-column)"
        )


class OpenWindowsError(BackfillError):
    """The live run has not finished the days yet, and files have no offsets at which the two could meet."""

    def __init__(self, application: str, task: str, days: str) -> None:
        super().__init__(application, task, days)
        self.application, self.task, self.days = application, task, days

    def __str__(self) -> str:
        return (
            f"task {self.task} of {self.application!r} may have windows of {self.days} open and would emit them "
            "again; choose earlier days, or backfill from Kafka"
        )


class UnknownBackfillError(BackfillError):
    """There is no backfill of that name, or it is not complete."""

    def __init__(self, application: str, backfill: str, reason: str) -> None:
        super().__init__(application, backfill, reason)
        self.application, self.backfill, self.reason = application, backfill, reason

    def __str__(self) -> str:
        return (
            f"backfill {self.backfill!r} of {self.application!r}: {self.reason}; `weir backfill list "
            f"{self.application}` shows all"
        )


class LargeChangeError(BackfillError):
    """A swap would remove or change more of a table than is done unasked; the backfill stays complete."""

    def __init__(
        self, application: str, backfill: str, program: str, max_change: float, tables: tuple[str, ...], folder: str
    ) -> None:
        super().__init__(application, backfill, program, max_change, tables, folder)
        self.application, self.backfill, self.program = application, backfill, program
        self.max_change, self.tables, self.folder = max_change, tables, folder

    def __str__(self) -> str:
        return (
            f"backfill {self.backfill!r} of {self.application!r} was not swapped in, since it would remove or change "
            f"more than {100 * self.max_change:g} % of a table's rows: {'; '.join(self.tables)}. Its own tables are in "
            f"{self.folder}, for `weir.read_table` or any reader of Delta. Swap it in anyway with "
            f"`weir backfill swap {self.program} {self.backfill} --yes` (--max-change SHARE in place of --yes, or "
            "max_change in the config of Dagster's run, sets another limit), "
            f"or discard it with `weir backfill discard {self.application} {self.backfill}`"
        )
