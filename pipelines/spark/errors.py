"""Why a run fails; each text names what was found and the way out."""

from __future__ import annotations

from weir.pipelines.serdes.source import BadRecord


class RunError(Exception):
    """The run stopped; everything before the cause is committed."""


class BadRecordError(RunError):
    """A record could not be read and the application says ``on_error="fail"``."""

    def __init__(self, application: str, record: BadRecord) -> None:
        super().__init__(application, record)
        self.application, self.record = application, record

    def __str__(self) -> str:
        record = self.record
        return (
            f"application {self.application!r} stopped at topic {record.topic!r}, partition {record.partition}, "
            f"offset {record.offset}: {record.reason}; all records before it are committed. Correct "
            'the producer or the declared schema, or pass on_error="dead_letter" to the Application and run it again: '
            "such records then go to the table _dead_letters"
        )


class TaskFailedError(RunError):
    """A task could not carry out its epoch; this is where exceptions of user code end up."""

    def __init__(self, application: str, task: str, reason: str) -> None:
        super().__init__(application, task, reason)
        self.application, self.task, self.reason = application, task, reason

    def __str__(self) -> str:
        return (
            f"application {self.application!r}, task {self.task}: {self.reason}; "
            "all earlier epochs are committed, and a new start repeats this one"
        )


class RestoreFailedError(RunError):
    """A task's state could not be rebuilt from its changelog."""

    def __init__(self, application: str, task: str, reason: str) -> None:
        super().__init__(application, task, reason)
        self.application, self.task, self.reason = application, task, reason

    def __str__(self) -> str:
        return (
            f"application {self.application!r}, task {self.task} could not be restored from its changelog: "
            f"{self.reason}; all epochs of the other tasks are committed, and a new start restores it again"
        )


class OffsetsLostError(RunError):
    """A topic ends before the committed position: its next records would be skipped silently."""

    def __init__(self, application: str, topic: str, partition: int, position: int, end: int) -> None:
        super().__init__(application, topic, partition, position, end)
        self.application, self.topic, self.partition = application, topic, partition
        self.position, self.end = position, end

    def __str__(self) -> str:
        return (
            f"application {self.application!r} continues from offset {self.position} of topic {self.topic!r}, "
            f"partition {self.partition}, which ends at {self.end}: the topic was recreated or has lost records; "
            f"bring the old topic back, or start over with `weir reset {self.application}`"
        )


class TopologyChangedError(RunError):
    """The commit log was written by another topology, and this one would lose state."""

    def __init__(self, application: str, loss: str) -> None:
        super().__init__(application, loss)
        self.application, self.loss = application, loss

    def __str__(self) -> str:
        return (
            f"application {self.application!r} was last committed by another topology, and {self.loss}; run the "
            "old program, compute what the new one would hold with `weir backfill run MODULE:APP --everything`, "
            "give it another id to read everything again, start over with `weir reset "
            f"{self.application}`, or accept the loss with `weir run --accept-state-loss`"
        )


class PendingRowsError(RunError):
    """Rows on their way between sub-topologies can only be read by a target that is as it was (PROTOCOL 26)."""

    def __init__(self, application: str, blobs: int) -> None:
        super().__init__(application, blobs)
        self.application, self.blobs = application, blobs

    def __str__(self) -> str:
        return (
            f"application {self.application!r} was last committed by another topology, which left {self.blobs} "
            "files of rows on their way to sub-topologies that are no longer as they were; first run the old program "
            f"with `weir run`, and stop it with `weir stop {self.application} --drain`, or run it with "
            "`weir run --until-caught-up`: both process the rows"
        )


class PartitionCountError(RunError):
    """A topic's partition count differs from the one that the state was built with."""

    def __init__(self, application: str, committed: int, found: int, topics: str) -> None:
        super().__init__(application, committed, found, topics)
        self.application, self.committed, self.found, self.topics = application, committed, found, topics

    def __str__(self) -> str:
        return (
            f"application {self.application!r} was committed with {self.committed} tasks, but its topics now make "
            f"{self.found} ({self.topics}): keys now belong to other tasks; start over with `weir reset "
            f"{self.application}`, give the program another id and read from the start, or begin with empty "
            "stores with `weir run --accept-state-loss`"
        )
