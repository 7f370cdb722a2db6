"""Why the state of an application is not dealt out among other tasks."""

from __future__ import annotations


class RepartitionError(Exception):
    """The state cannot be dealt out for the topics' partitions; nothing was changed."""

    def __init__(self, application: str, reason: str) -> None:
        super().__init__(application, reason)
        self.application, self.reason = application, reason

    def __str__(self) -> str:
        return f"the state of {self.application!r} cannot be dealt out among other tasks: {self.reason}"


class StoresNotDealtError(RepartitionError):
    """Some stores have rows of which it is not known to which task they belong."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}; leave the topics as they were, or begin with empty stores with "
            "`weir run MODULE:APP --accept-state-loss`"
        )


class OwnKeysError(RepartitionError):
    """Processors have stores whose keys may be others than those of the records."""

    def __init__(self, application: str, stores: tuple[str, ...]) -> None:
        super().__init__(application, "")
        self.args = (application, stores)
        self.stores = stores
        named = ", ".join(map(repr, stores))
        options = " ".join(f"--keyed-by-record {store}" for store in stores)
        self.reason = (
            f"processors keep {named} by keys of their own, of which it is not known to which records they belong; if "
            f"they are the keys of the records, say so with {options} in the same command, or begin with empty stores "
            "with `weir run MODULE:APP --accept-state-loss`"
        )


class MisplacedKeyError(RepartitionError):
    """A key's state is not in the task where Kafka's default partitioner puts the key."""

    def __init__(self, application: str, store: str, key: str, partition: int, tasks: int) -> None:
        super().__init__(
            application,
            f"that of key {key} of the store {store!r} is in the task of partition {partition}, and Kafka's default "
            f"partitioner puts the key into another of {tasks}: producers use another one, or a run has read records "
            "that came after the topic had grown, or the store's keys are not those of the records; begin with empty "
            "stores with `weir run MODULE:APP --accept-state-loss`",
        )
        self.args = (application, store, key, partition, tasks)
        self.store, self.key, self.partition, self.tasks = store, key, partition, tasks


class UnreadRecordsError(RepartitionError):
    """Records are unread in partitions where their keys' state would no longer be."""

    def __init__(self, application: str, topic: str, partition: int, offset: int, *, is_split: bool) -> None:
        super().__init__(application, "")
        self.args = (application, topic, partition, offset)
        self.topic, self.partition, self.offset, self.is_split = topic, partition, offset, is_split
        where = (
            f"topic {topic!r}, partition {partition}, has a record at offset {offset} that is not read yet, of a key"
        )
        self.reason = (
            f"{where} whose new records are in another partition, and so would its state be; read what is left in the "
            "old partitions first with `weir run MODULE:APP --until-caught-up --committed-partitions`"
            if is_split
            else f"{where} whose new records are in another partition, and as the number of partitions is no multiple "
            "of what it was, what the old ones have since cannot be told apart; begin with empty stores with "
            "`weir run MODULE:APP --accept-state-loss`"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _unread, (self.application, self.topic, self.partition, self.offset, self.is_split)


def _unread(application: str, topic: str, partition: int, offset: int, is_split: bool) -> UnreadRecordsError:
    return UnreadRecordsError(application, topic, partition, offset, is_split=is_split)


class RowsUnderWayError(RepartitionError):
    """Rows are on their way to tasks that will be others."""

    def __init__(self, application: str, blobs: int) -> None:
        super().__init__(
            application,
            f"{blobs} files of rows are on their way between its tasks; have them processed first with "
            "`weir run MODULE:APP --until-caught-up --committed-partitions`, where repartitions have as many tasks as "
            "before",
        )
        self.args = (application, blobs)
        self.blobs = blobs
