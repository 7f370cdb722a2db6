"""``weir repartition``: topics with more partitions are refused, and each way out that a message names is typed as it
stands; afterwards the results are those of a plain count over the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from tests.pipelines.cli.typed import Answer, Terminal
from tests.pipelines.order.model import partition_of
from weir import (
    Application,
    Int64,
    Json,
    KeyValueStore,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    String,
)
from weir.pipelines.operations.registry import register
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

MS = timedelta(milliseconds=1)


def views(*, logging: bool = True, id: str = "views") -> Application:
    """Views by user."""
    builder = StreamsBuilder()
    stream = builder.stream("views", key=String("user"), value=Int64("seconds"))
    counts = Materialized("counts") if logging else Materialized("counts", logging=False, on_loss="empty")
    stream.group_by_key().count(counts).to_delta("out")
    return Application(id, builder, commit_interval=MS)


class Visits(Processor[str, int, str, int]):
    """Counts the records of each user in a store of its own."""

    stores = (KeyValueStore("visits", key=str, value=int),)

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.state_store("visits")

    def process(self, record: Record[str, int]) -> None:
        seen = (self.store.get(record.key) or 0) + 1
        self.store.put(record.key, seen)
        self.context.forward(Record(record.key, seen, record.timestamp))


def by_seconds() -> Application:
    """Views by their seconds, which a repartition moves."""
    builder = StreamsBuilder()
    stream = builder.stream("views", key=String("user"), value=Int64("seconds"))
    stream.group_by("seconds").count("counts").to_delta("out")
    return Application("clicks", builder)


def visits() -> Application:
    builder = StreamsBuilder()
    stream = builder.stream("views", key=String("user"), value=Int64("seconds"))
    stream.process(Visits).to_table("latest").to_delta("out")
    return Application("views", builder, commit_interval=MS)


def produce(terminal: Terminal, users: Iterable[str], *, among: int | None = None) -> None:
    """Records as Kafka's default partitioner places them."""
    count = terminal.topics.partition_counts()["views"] if among is None else among
    for user in users:
        rows = terminal.topics.rows["views", partition_of(user, count)]
        rows.append((user.encode(), (1).to_bytes(8, "big"), 1_000 + len(rows)))


def users(count: int, first: int = 0) -> list[str]:
    return [f"user-{number % 7}" for number in range(first, first + count)]


def grow(terminal: Terminal, partitions: int) -> None:
    terminal.topics.rows |= {("views", n): [] for n in range(partitions) if ("views", n) not in terminal.topics.rows}


def found(terminal: Terminal, column: str = "count") -> dict[str, int]:
    rows = read_table(terminal.warehouse / "views" / "out")
    return dict(rows.select("user", column).iter_rows())


@pytest.fixture
def program(terminal) -> str:
    """A program that has counted 60 records of two partitions."""
    grow(terminal, 2)
    produce(terminal, users(60))
    reference = terminal.has("views", views())
    assert terminal.run(reference).code == 0
    return reference


def refused(terminal: Terminal, program: str) -> Answer:
    said = terminal.run(program)
    assert (said.code, "views: 4 partitions" in said.text) == (1, True), said.text
    return said


def test_the_state_is_dealt_out_and_counts_go_on(terminal, program):
    grow(terminal, 4)
    produce(terminal, users(30, 60))
    said = refused(terminal, program)
    tried = terminal.weir("repartition views --dry-run")
    assert tried.code == 0, tried.text
    assert "2 tasks become 4" in tried.text
    assert "nothing was changed (--dry-run)" in tried.text
    assert newest_commit(terminal.warehouse, "views").reason != "repartitioned"
    done = terminal.take("repartition views", said)
    assert done.code == 0, done.text
    assert "of 7 in another task" in done.text
    again = terminal.weir("repartition views")
    assert "has as many tasks as its topics make; nothing was changed" in again.text
    assert terminal.run(program).code == 0
    assert found(terminal) == Counter(users(90))
    assert terminal.weir("verify views").code == 0


def test_what_is_left_in_the_old_partitions_is_read_first(terminal, program):
    produce(terminal, users(20, 60))
    grow(terminal, 4)
    produce(terminal, users(30, 80))
    refused(terminal, program)
    said = terminal.weir("repartition views")
    assert said.code == 1
    assert "that is not read yet, of a key whose new records are in another partition" in said.text
    read = terminal.take("run MODULE:APP --until-caught-up --committed-partitions", said, MODULE=program)
    assert read.code == 0, read.text
    refused(terminal, program)
    assert terminal.weir("repartition views").code == 0
    assert terminal.run(program).code == 0
    assert found(terminal) == Counter(users(110))


def test_only_a_multiple_of_the_partitions_is_read_as_before(terminal, program):
    produce(terminal, users(20, 60))
    grow(terminal, 3)
    said = terminal.run(program, "--committed-partitions")
    assert said.code == 1
    assert "had 2 partitions and has 3, which is no multiple" in said.text
    said = terminal.take("repartition views", said)
    assert said.code == 1
    assert "the old ones have since cannot be told apart" in said.text
    lost = terminal.take("run MODULE:APP --accept-state-loss", said, "--until-caught-up", MODULE=program)
    assert lost.code == 0, lost.text
    assert found(terminal) == {**Counter(users(60)), **Counter(users(20, 60))}


def test_any_number_will_do_once_everything_is_read(terminal, program):
    grow(terminal, 3)
    said = terminal.run(program, "--committed-partitions")
    assert terminal.take("repartition views", said).code == 0
    produce(terminal, users(30, 60))
    assert terminal.run(program).code == 0
    assert found(terminal) == Counter(users(90))


def test_a_run_without_an_end_does_not_leave_partitions_out(terminal, program):
    grow(terminal, 4)
    said = terminal.weir(f"run {program} --committed-partitions")
    assert said.code == 1
    assert "add --until-caught-up" in said.text


def test_a_store_of_a_processor_is_dealt_out_once_its_keys_are_vouched_for(terminal):
    grow(terminal, 2)
    produce(terminal, users(60))
    program = terminal.has("visits", visits())
    assert terminal.run(program).code == 0
    grow(terminal, 4)
    produce(terminal, users(30, 60))
    said = terminal.take("repartition views", refused(terminal, program))
    assert said.code == 1
    assert "say so with --keyed-by-record visits in the same command" in said.text
    done = terminal.weir("repartition views --keyed-by-record visits")
    assert done.code == 0, done.text
    assert terminal.run(program).code == 0
    assert found(terminal, "value") == Counter(users(90))


def test_stores_that_cannot_be_dealt_out_begin_empty_if_that_is_accepted(terminal):
    grow(terminal, 2)
    produce(terminal, users(60))
    program = terminal.has("visits", visits())
    assert terminal.run(program).code == 0
    grow(terminal, 4)
    said = terminal.weir("repartition views")
    produce(terminal, users(30, 60))
    lost = terminal.take("run MODULE:APP --accept-state-loss", said, "--until-caught-up", MODULE=program)
    assert lost.code == 0, lost.text
    assert found(terminal, "value") == Counter(users(30, 60))


def test_a_store_without_a_changelog_gets_one_first(terminal):
    grow(terminal, 2)
    produce(terminal, users(60))
    program = terminal.has("views", views(logging=False))
    assert terminal.run(program).code == 0
    grow(terminal, 4)
    said = terminal.weir("repartition views")
    assert said.code == 1
    assert "store 'counts' has no changelog" in said.text
    logged = terminal.has("logged", views())
    assert terminal.run(logged, "--committed-partitions").code == 0
    produce(terminal, users(30, 60))
    done = terminal.weir("repartition views")
    assert done.code == 0, done.text
    assert terminal.run(logged).code == 0
    assert found(terminal) == Counter(users(90))


def test_keys_that_another_partitioner_placed_are_found(terminal):
    grow(terminal, 2)
    for number, user in enumerate(users(60)):
        terminal.topics.rows["views", int(user[-1]) % 2].append((user.encode(), (1).to_bytes(8, "big"), number))
    program = terminal.has("views", views())
    assert terminal.run(program).code == 0
    grow(terminal, 4)
    said = terminal.weir("repartition views")
    assert said.code == 1
    assert "Kafka's default partitioner puts the key into another of 2" in said.text
    lost = terminal.take("run MODULE:APP --accept-state-loss", said, "--until-caught-up", MODULE=program)
    assert lost.code == 0, lost.text


def test_another_program_is_refused(terminal, program):
    grow(terminal, 4)
    terminal.has("views", visits())
    said = terminal.weir("repartition views")
    assert said.code == 1
    assert "the program is not the one that made the newest commit" in said.text
    terminal.has("views", views())
    assert terminal.weir("repartition views").code == 0


def test_an_application_that_has_committed_nothing_is_run(terminal):
    grow(terminal, 2)
    produce(terminal, users(60))
    program = terminal.has("views", views())
    register(terminal.settings, "views", program)
    said = terminal.weir("repartition views")
    assert (said.code, "has committed nothing" in said.text) == (1, True), said.text
    assert terminal.take("run MODULE:APP", said, "--until-caught-up", MODULE=program).code == 0
    assert found(terminal) == Counter(users(60))


def test_a_topic_made_anew_is_refused_and_read_after_a_reset(terminal):
    grow(terminal, 2)
    terminal.topics.ids["views"] = "first"
    produce(terminal, users(60))
    program = terminal.has("views", views())
    assert terminal.run(program).code == 0
    terminal.topics.rows.clear()
    terminal.topics.ids["views"] = "second"
    grow(terminal, 4)
    produce(terminal, users(30))
    said = terminal.weir("repartition views")
    assert (said.code, "was deleted and recreated" in said.text) == (1, True), said.text
    assert terminal.take("reset views", said).code == 0
    assert terminal.run(program).code == 0
    assert found(terminal) == Counter(users(30))


def test_a_store_without_a_changelog_may_begin_empty(terminal):
    grow(terminal, 2)
    produce(terminal, users(60))
    program = terminal.has("views", views(logging=False))
    assert terminal.run(program).code == 0
    grow(terminal, 4)
    produce(terminal, users(30, 60))
    said = terminal.weir("repartition views")
    lost = terminal.take("run MODULE:APP --accept-state-loss", said, "--until-caught-up", MODULE=program)
    assert lost.code == 0, lost.text
    assert found(terminal) == Counter(users(30, 60))


@pytest.fixture
def under_way(terminal) -> Answer:
    """What a run says to grown topics while rows are on their way."""
    grow(terminal, 2)
    for number in range(3_000):
        user = f"user-{number % 50}"
        row = user.encode(), (number % 20).to_bytes(8, "big"), number
        terminal.topics.rows["views", partition_of(user, 2)].append(row)
    with terminal.typing_beside("stop clicks") as codes:
        done = terminal.weir(f"run {terminal.has('moved', by_seconds())} --set max_epoch_records=20")
    assert (done.code, codes) == (0, [0]), done.text
    assert newest_commit(terminal.warehouse, "clicks").pending_blobs
    grow(terminal, 4)
    said = terminal.run("programs:moved")
    assert (said.code, "files of rows are on their way" in said.text) == (1, True), said.text
    return said


def by_seconds_found(terminal: Terminal) -> dict[int, int]:
    return dict(read_table(terminal.warehouse / "clicks" / "out").select("seconds", "count").iter_rows())


def test_rows_on_their_way_are_processed_first(terminal, under_way):
    said = terminal.weir("repartition clicks")
    read = "run MODULE:APP --until-caught-up --committed-partitions"
    assert (said.code, read in said.commands & under_way.commands) == (1, True), said.text
    assert terminal.take(read, said, MODULE="programs:moved").code == 0
    assert terminal.take("repartition clicks", under_way).code == 0
    assert terminal.run("programs:moved").code == 0
    assert by_seconds_found(terminal) == dict.fromkeys(range(20), 150)


def test_rows_on_their_way_are_given_up_with_a_reset(terminal, under_way):
    assert terminal.take("reset clicks", under_way).code == 0
    assert terminal.run("programs:moved").code == 0
    assert by_seconds_found(terminal) == dict.fromkeys(range(20), 150)


@dataclass(frozen=True)
class Who:
    user: str


def test_keys_that_the_serde_writes_otherwise_are_found(terminal):
    builder = StreamsBuilder()
    stream = builder.stream("views", key=Json(Who), value=Int64("seconds"))
    stream.group_by_key().count("counts").to_delta("out")
    program = terminal.has("views", Application("views", builder, commit_interval=MS))
    grow(terminal, 1)
    for number, user in enumerate(users(20)):
        terminal.topics.rows["views", 0].append((b'{"user": "%s"}' % user.encode(), (1).to_bytes(8, "big"), number))
    assert terminal.run(program).code == 0
    grow(terminal, 2)
    said = terminal.weir("repartition views")
    assert (said.code, "which Json writes as" in said.text) == (1, True), said.text
    lost = terminal.take("run MODULE:APP --accept-state-loss", said, "--until-caught-up", MODULE=program)
    assert lost.code == 0, lost.text
