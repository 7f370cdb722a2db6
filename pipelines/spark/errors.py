"""Why a run fails; each text names what was found and the way out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from weir.pipelines.serdes.source import BadRecord
from weir.state.errors import DiskFullError


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
            f"offset {record.offset}: {record.reason}; all records before it in its partition are committed. Correct "
            'the declared schema, or write Application(..., on_error="dead_letter"), so that such records go to the '
            "table _dead_letters, and run it again; a corrected producer helps only records to come"
        )


class ExpectationViolatedError(RunError):
    """A record violates an expectation that says ``on_violation="fail"``."""

    def __init__(self, application: str, record: BadRecord) -> None:
        super().__init__(application, record)
        self.application, self.record = application, record

    def __str__(self) -> str:
        record = self.record
        if record.row is None:
            place = f"topic {record.topic!r}, partition {record.partition}, offset {record.offset}"
        else:
            place = f"a row that came over {record.topic!r}"
        return (
            f"application {self.application!r} stopped at {place}: {record.operator}: {record.reason}; all records "
            "before it in its partition are committed. Correct the expectation, or let it put such records aside with "
            'on_violation="dead_letter", and run it again; a corrected producer helps only records to come'
        )


class CommitOutOfSpaceError(RunError):
    """A commit could not be finished, since the disk of the warehouse is full."""

    def __init__(self, application: str, full: DiskFullError) -> None:
        super().__init__(application, full)
        self.application, self.full = application, full

    def __str__(self) -> str:
        return (
            f"application {self.application!r} could not finish a commit, since the disk of {self.full.folder} is full "
            f"({self.full.free:,} bytes free); free some space there and start it again: what was committed stands, "
            "and the rest runs again"
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


class StateInDoubtError(Exception):
    """A task whose store was found to differ has accepted epochs that no commit covers: they must not be committed, so
    this generation ends without them, and another one goes on from the last commit."""

    def __init__(self, task: str, difference: str) -> None:
        super().__init__(task, difference)
        self.task, self.difference = task, difference

    def __str__(self) -> str:
        return (
            f"task {self.task} is in doubt: {self.difference}; what was done since the last commit is rolled back, and "
            "the run goes on from there"
        )


class UnconfirmedReadsError(Exception):
    """No broker has said, before the run was to end, whether what was read since the last commit came from the logs of
    before: it must not be committed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.reason}; so nobody knows whether the topics are still those that were read: what was read since "
            "the last commit is rolled back, and the next start reads it again"
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


class UnloggedStoreLostError(RunError):
    """A store is lost that has a changelog, but before its rows were written there."""

    def __init__(self, application: str, task: str, store: str, reason: str) -> None:
        super().__init__(application, task, store, reason)
        self.application, self.task, self.store, self.reason = application, task, store, reason

    def __str__(self) -> str:
        return (
            f"application {self.application!r}, task {self.task}: {self.reason}, and the changelog of its store "
            f"{self.store!r}, which had none before, does not have the rows yet; declare the store with "
            'logging=False, on_loss="empty" again, and it begins empty'
        )


class RangeLostError(RunError):
    """A store without a changelog is lost, and its topic no longer gives its rows."""

    def __init__(self, application: str, task: str, store: str, reason: str) -> None:
        super().__init__(application, task, store, reason)
        self.application, self.task, self.store, self.reason = application, task, store, reason

    def __str__(self) -> str:
        return (
            f"application {self.application!r}, task {self.task}: its store {self.store!r} is lost, has no changelog, "
            f'and cannot be computed again: {self.reason}; declare the store with on_loss="empty", and it begins empty'
        )


class CompactedTopicError(RunError):
    """A store without a changelog could not be computed again: its topic keeps only the newest record of each key."""

    def __init__(self, application: str, store: str, topic: str) -> None:
        super().__init__(application, store, topic)
        self.application, self.store, self.topic = application, store, topic

    def __str__(self) -> str:
        return (
            f"application {self.application!r}: its store {self.store!r} has no changelog, and if it is lost, its "
            f"topic {self.topic!r} does not give its rows again, since the topic is compacted (cleanup.policy) and its "
            'older records are deleted; add on_loss="empty" to the store if it may then begin empty, or leave '
            "logging=False out"
        )


class ReplayRefusedError(RunError):
    """Dead letters would go into a store that is computed again if it is lost, and then without them."""

    def __init__(self, application: str, store: str) -> None:
        super().__init__(application, store)
        self.application, self.store = application, store

    def __str__(self) -> str:
        return (
            f"application {self.application!r}: its store {self.store!r} has no changelog, and if it is lost, it would "
            'be computed again without the dead letters that are replayed; declare the store with on_loss="empty", or '
            "leave logging=False out, start the program, and replay them then"
        )


class Loss(StrEnum):
    """Why a topic cannot be read on at a position."""

    REPLACED = "replaced"
    """It is another topic of the same name."""
    DELETED = "deleted"
    """It does not exist any more."""
    TRUNCATED = "truncated"
    """An unclean leader election has given the offsets before the position to other records."""
    SHORT = "short"
    """It ends before the position."""
    EXPIRED = "expired"
    """It begins after the position."""


@dataclass(frozen=True, kw_only=True)
class LostPosition:
    """A position at which a topic partition cannot be read on."""

    topic: str
    partition: int
    position: int
    loss: Loss
    found: str
    """The old and the new id, or the offset where the log was truncated, ends or begins; "" if it is deleted."""
    resume: int | None
    """Where it can be read on if the loss is accepted; None where that is unknown."""
    end: int | None = None
    """Where the topic was last seen to end, if it was deleted during a run."""
    is_uncommitted: bool = False
    """Whether the last commit is of before the truncation: a start reads on there, and misses nothing."""

    def __str__(self) -> str:
        at, unread = self.position, ""
        if self.end is not None and self.end > at:
            unread = f", and [{at}, {self.end}) was not read"
        match self.loss:
            case Loss.REPLACED:
                what = f"but the topic was deleted and recreated ({self.found}){unread}"
            case Loss.DELETED:
                what = f"but the topic was deleted{unread}"
            case Loss.TRUNCATED if self.is_uncommitted:
                what = (
                    f"but the brokers have lost its records from offset {self.found} on, and others have taken over; "
                    "nothing from there on is committed"
                )
            case Loss.TRUNCATED:
                what = (
                    f"but the brokers have lost its records from offset {self.found} on, of which [{self.found}, {at}) "
                    "were read, and others have taken over"
                )
            case Loss.SHORT:
                what = f"which ends at {self.found}: the topic was recreated or has lost [{self.found}, {at})"
            case Loss.EXPIRED:
                what = (
                    f"which begins at {self.found}: the records before that, [{at}, {self.found}), were removed unread"
                )
        return f"offset {at} of topic {self.topic!r}, partition {self.partition}, {what}"


class OffsetsLostError(RunError):
    """Topics no longer hold what the positions belong to; reading on would skip or mix records silently."""

    def __init__(self, application: str, lost: Sequence[LostPosition]) -> None:
        super().__init__(application, lost)
        self.application, self.lost = application, tuple(lost)

    def __str__(self) -> str:
        first, others = self.lost[0], len(self.lost) - 1
        more = f" (and so in {others} other partition{'s' if others > 1 else ''})" if others else ""
        if all(each.is_uncommitted for each in self.lost):
            return (
                f"application {self.application!r} continues from {first}{more}: start it again with "
                "`weir run MODULE:APP`, and it reads what the brokers have now"
            )
        if any(each.resume is None for each in self.lost):
            accept = ""
        else:
            match first.loss:
                case Loss.REPLACED:
                    resume = "read the new topic from its start"
                case Loss.DELETED:
                    count = sum(each.topic == first.topic for each in self.lost)
                    resume = (
                        f"create it again with `weir kafka create {first.topic} --partitions {count:d}` and read the "
                        "new topic from its start"
                    )
                case _:
                    resume = f"read on at offset {first.resume}"
            accept = f", {resume}, keeping all state, with `weir run MODULE:APP --accept-lost-records`"
        return (
            f"application {self.application!r} continues from {first}{more}; run "
            "`weir run MODULE:APP --bootstrap-servers HOST:PORT` with the brokers that have the old "
            f"records{accept}, or start over with `weir reset {self.application}`"
        )


class NoMatchingTopicError(RunError):
    """No topic matches a pattern."""

    def __init__(self, application: str, pattern: str) -> None:
        super().__init__(application, pattern)
        self.application, self.pattern = application, pattern

    def __str__(self) -> str:
        return (
            f"application {self.application!r} reads the topics that match {self.pattern!r}, and there is none; create "
            "one, in the folder's own broker with `weir kafka create TOPIC`, or correct the pattern (`weir kafka list` "
            "shows all topics)"
        )


class MatchedTopicGoneError(RunError):
    """A topic that was read because it matched a pattern does not exist any more."""

    def __init__(self, application: str, topic: str) -> None:
        super().__init__(application, topic)
        self.application, self.topic = application, topic

    def __str__(self) -> str:
        return (
            f"application {self.application!r} has read topic {self.topic!r}, which matches its pattern, and it does "
            "not exist any more: what was not read of it is lost; go on without it, keeping all state, with "
            "`weir run MODULE:APP --accept-lost-records`"
        )


class GlobalTopicReplacedError(RunError):
    """The topic of a global table was replaced while a run had its rows."""

    def __init__(self, application: str, topic: str, found: str) -> None:
        super().__init__(application, topic, found)
        self.application, self.topic, self.found = application, topic, found

    def __str__(self) -> str:
        return (
            f"application {self.application!r} holds the global table of topic {self.topic!r}, which was deleted and "
            f"recreated ({self.found}); a new start reads it from its beginning and continues from the last commit"
        )


class CommitLogLostError(RunError):
    """There is local state or there are tables, but no commit log: a start would begin again beside them."""

    def __init__(self, application: str, log: str, left: str) -> None:
        super().__init__(application, log, left)
        self.application, self.log, self.left = application, log, left

    def __str__(self) -> str:
        return (
            f"application {self.application!r} has run before (there is {self.left}), but its commit log {self.log} is "
            "gone, and with it every position: put the application's warehouse folder back, or start over with "
            f"`weir reset {self.application}`"
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
            'give it another id to read everything again, as in Application("other-id", ...), start over with '
            f"`weir reset {self.application}`, or accept the loss with `weir run MODULE:APP --accept-state-loss`"
        )


class OtherApplicationError(TopologyChangedError):
    """The commit log was written by a program that has nothing in common with this one."""

    def __init__(self, application: str) -> None:
        super().__init__(application, "nothing in it is part of this program")
        self.args = (application,)  # keeps the error picklable

    def __str__(self) -> str:
        return (
            f"this folder already has an application {self.application!r}, whose program has no store, topic or output "
            "in common with this one: they are probably two applications with the same id; give this one another id, "
            'as in Application("other-id", ...), or another folder with `weir run MODULE:APP --dir OTHER_DIR`, or, if '
            "it is to replace the other (whose stores are then kept aside and whose positions are dropped), start it "
            "with `weir run MODULE:APP --accept-state-loss`"
        )


class ProgramReplacedError(RunError):
    """Another program has committed between the look at the newest commit and the claim."""

    def __init__(self, application: str) -> None:
        super().__init__(application)
        self.application = application

    def __str__(self) -> str:
        return (
            f"another program of the application {self.application!r} has just committed, and its stores have other "
            "names than those with which this start began; start it again with `weir run MODULE:APP`"
        )


class StorePlacementError(RunError):
    """A repartition would send rows of a key to another task than the one that has its state."""

    def __init__(self, store: str, key: str, partition: int) -> None:
        super().__init__(store, key, partition)
        self.store, self.key, self.partition = store, key, partition

    def __str__(self) -> str:
        return (
            f"the state of key {self.key} of the store {self.store!r} is in the task of partition {self.partition}, "
            "where the topic's producers put the key, and a repartition would send its rows to another: they do not "
            "use Kafka's default partitioner; leave the repartition out, or give the store another name and either "
            "begin empty with `weir run MODULE:APP --accept-state-loss` or compute what it would hold with "
            "`weir backfill run MODULE:APP --everything`"
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
            f"with `weir run OLD_MODULE:APP`, and stop it with `weir stop {self.application} --drain`, or run it with "
            "`weir run OLD_MODULE:APP --until-caught-up`: both process the rows"
        )


class GrownWithRowsError(RunError):
    """Rows are on their way to tasks that topics with more partitions make others."""

    def __init__(self, application: str, blobs: int, topics: str) -> None:
        super().__init__(application, blobs, topics)
        self.application, self.blobs, self.topics = application, blobs, topics

    def __str__(self) -> str:
        return (
            f"the topics of application {self.application!r} make other tasks than those of its newest commit "
            f"({self.topics}), for which {self.blobs} files of rows are on their way; have them processed with "
            "`weir run MODULE:APP --until-caught-up --committed-partitions`, and then deal the state out with "
            f"`weir repartition {self.application}`, or start over with `weir reset {self.application}`"
        )


class KeysMovedError(RunError):
    """A topic's partitions that a commit knows may have keys now that were in another of them."""

    def __init__(self, application: str, topic: str, committed: int, found: int) -> None:
        super().__init__(application, topic, committed, found)
        self.application, self.topic, self.committed, self.found = application, topic, committed, found

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} had {self.committed} partitions and has {self.found}, which is no multiple: keys "
            "have moved from one of the old ones to another, so records of these must not be read without their state; "
            f"leave --committed-partitions out, and deal the state out with `weir repartition {self.application}`"
        )


class PartitionCountError(RunError):
    """A topic's partition count differs from the one that the state was built with."""

    def __init__(self, application: str, committed: int, found: int, topics: str) -> None:
        super().__init__(application, committed, found, topics)
        self.application, self.committed, self.found, self.topics = application, committed, found, topics

    def __str__(self) -> str:
        return (
            f"application {self.application!r} was committed with {self.committed} tasks, and now its topics make "
            f"{self.found} ({self.topics}), so that keys belong to other tasks; keep the state and deal it "
            f"out among them with `weir repartition {self.application}`, start over with `weir reset "
            f'{self.application}`, give the program another id and read from the start, as in Application("other-id", '
            "...), or begin with empty stores with `weir run MODULE:APP --accept-state-loss`"
        )
