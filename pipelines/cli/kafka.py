"""``weir kafka``: the folder's embedded broker, and topics and records for people without Kafka's own tools."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.pipelines.cli.advice import advised
from weir.pipelines.cli.options import (
    DebugOption,
    DirOption,
    JsonOption,
    ServersOption,
    SetOption,
    YesOption,
    confirm,
    load_settings,
    parse_assignments,
    require_writable,
)
from weir.pipelines.cli.render import console, notices, print_json, print_json_line, print_table
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.text import counted
from weir.state.printable import printable

if TYPE_CHECKING:
    from weir.infra.kafka.admin import KafkaAdmin
    from weir.infra.kafka.records import Record
    from weir.infra.settings import Settings

kafka = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="Example: weir kafka start",
    help="Manage the folder's embedded Kafka broker, and look into topics of any Kafka.",
)
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
DEFAULT_PARTITIONS = 4
_FOR_EVER = "-1"


@contextmanager
def _cluster(
    directory: Path | None, bootstrap_servers: str | None, assignments: list[str] | None
) -> Iterator[tuple[KafkaAdmin, Settings]]:
    """A client of the Kafka that the options name, and the settings; the folder's broker stays up meanwhile."""
    from weir.infra.kafka.admin import KafkaAdmin
    from weir.infra.kafka.broker import broker_for

    overrides = parse_assignments(assignments or [])
    settings = load_settings(directory, overrides, bootstrap_servers=bootstrap_servers)
    if settings.bootstrap_servers is None:
        require_writable(settings)
    with broker_for(settings) as (servers, settings):
        yield KafkaAdmin(servers, settings.kafka), settings


@kafka.command("start", epilog="Example: weir kafka start --dir .weir")
def start(context: typer.Context, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Start the folder's embedded broker and keep it running until `weir kafka stop`.

    Otherwise it ends about two seconds after the last command that uses it. Topics stay in the folder. Clients log in
    with a password, which is in the files that this command names.
    """
    from weir.infra.kafka.broker import EmbeddedBroker

    settings = load_settings(directory, writes=True)
    broker = EmbeddedBroker(settings.kafka_dir)
    with notices.status("starting Kafka"):
        bootstrap_servers = broker.keep()
    told = f"Kafka is running at {bootstrap_servers}; stop it with `weir kafka stop`"
    console.print(advised(told, context), markup=False, soft_wrap=True)
    console.print(
        "Clients need the properties in one of these files, which have the password:\n"
        f"  confluent-kafka  {broker.files.client}\n"
        f"  Java             {broker.files.java_client} (kafka-console-producer.sh --command-config FILE)",
        markup=False,
        soft_wrap=True,
    )


@kafka.command("stop", epilog="Example: weir kafka stop --dir .weir")
def stop(directory: DirOption = None, debug: DebugOption = False) -> None:
    """Stop the folder's embedded broker, or let it stop with the last command that uses it."""
    from weir.infra.kafka.broker import EmbeddedBroker

    settings = load_settings(directory)
    broker = EmbeddedBroker(settings.kafka_dir)
    if not broker.is_supervised():
        console.print(f"no embedded Kafka is running in {settings.dir}", markup=False, soft_wrap=True)
        return
    with notices.status("stopping Kafka"):
        ended = broker.stop()
    console.print("Kafka has stopped" if ended else "Kafka stops once the commands that use it have ended")


@kafka.command("create", epilog="Example: weir kafka create orders payments --partitions 4")
def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics' names.")],
    partitions: Annotated[int | None, typer.Option(min=1, help="Their number of partitions; 4 if left out.")] = None,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Create topics; the embedded broker never creates one by itself. An existing topic stays as it is, and is refused
    if it has another number of partitions than `--partitions` asks for."""
    with ExitStack() as stack:
        with notices.status("asking Kafka"):
            admin, _ = stack.enter_context(_cluster(directory, bootstrap_servers, assignments))
        for topic in topics:
            _create(topic, partitions, admin)


def _create(topic: str, partitions: int | None, admin: KafkaAdmin) -> None:
    with notices.status("asking Kafka"):
        is_new = admin.create_topic(topic, partitions or DEFAULT_PARTITIONS)
        count = admin.partition_count(topic)
    if partitions not in (None, count):
        raise OperationError(
            f"topic {topic!r} already exists with {counted(count, 'partition')}, not {partitions:,}; leave "
            "--partitions out to use it as it is, or give another name"
        )
    outcome = "created" if is_new else "already exists"
    console.print(
        f"topic {topic!r} {outcome}, with {counted(count, 'partition')} at {admin.bootstrap_servers}",
        markup=False,
        soft_wrap=True,
    )


@kafka.command("list", epilog="Example: weir kafka list --bootstrap-servers host:9092")
def list_topics(
    context: typer.Context,
    internal: Annotated[
        bool, typer.Option("--internal", help="Show the brokers' own topics too, which begin with __.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """List the topics: partitions, records, and how long records are kept.

    Records are counted by offsets, so compacted records and the ends of transactions count too.
    """
    import polars as pl

    with notices.status("asking Kafka"), _cluster(directory, bootstrap_servers, assignments) as (admin, _):
        topics = {name: count for name, count in admin.topics().items() if internal or not name.startswith("__")}
        partitions = [(name, partition) for name, count in topics.items() for partition in range(count)]
        begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
        config = admin.topic_config(topics, ("cleanup.policy", "retention.ms", "retention.bytes"))
    found = [
        {
            "topic": name,
            "partitions": count,
            "records": sum(ends[each] - begins[each] for each in partitions if each[0] == name),
            "retention": _retention(config[name]),
        }
        for name, count in topics.items()
    ]
    if as_json:
        print_json({"bootstrap_servers": admin.bootstrap_servers, "topics": found})
    elif found:
        print_table(pl.DataFrame(found))
    else:
        told = f"there are no topics at {admin.bootstrap_servers} yet; make one with `weir kafka create TOPIC`"
        console.print(advised(told, context), markup=False, soft_wrap=True)


def _retention(config: dict[str, str]) -> str:
    """How long records are kept, in words."""
    policies, kept_ms = config.get("cleanup.policy", "delete"), config.get("retention.ms", _FOR_EVER)
    found = ["newest of each key"] if "compact" in policies else []
    if "delete" in policies:
        found.append("for ever" if kept_ms == _FOR_EVER else str(timedelta(milliseconds=int(kept_ms))))
        if (size := config.get("retention.bytes", _FOR_EVER)) != _FOR_EVER:
            found.append(f"at most {int(size):,} bytes per partition")
    return ", ".join(found)


@kafka.command(
    "produce",
    epilog="Example: weir kafka produce orders --file orders.jsonl --key-field customer, "
    "or: printf 'ann\\t{\"amount\": 5}\\n' | weir kafka produce orders",
)
def produce(
    topic: TopicArgument,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Read the lines of this file instead of standard input."),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option("--key-field", metavar="NAME", help="Each line is a JSON object, and this field is its key."),
    ] = None,
    time_field: Annotated[
        str | None,
        typer.Option("--time-field", metavar="NAME", help="Each line is a JSON object, and this field is its time."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Send all to this partition; by default, the key decides.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The records' time, such as 2024-01-31T12:00:00Z; by default, now."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header for each record; may be repeated."),
    ] = None,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Send the lines of standard input, or of a file, to a topic, each as a record.

    A line of JSON is a value without a key. Any other line is a key, a tab and a value; without a tab it is a value,
    and without a value it deletes a table's row. With --key-field, a field of the JSON is the key, and with
    --time-field, one is the time: an ISO time, of UTC if it names no zone, or milliseconds since 1970. Blank lines are
    left out. Keys are placed as Java's producers place them.
    """
    from weir.infra.kafka.records import send
    from weir.pipelines.operations.records import Sent, records_of, time_ms_of

    if timestamp is not None and time_field is not None:
        raise OperationError("--timestamp is the time of all records; leave it out, or leave out --time-field")
    timestamp_ms = None if timestamp is None else time_ms_of(timestamp, "--timestamp")
    if timestamp_ms is not None and timestamp_ms <= 0:  # a producer takes 0 for the present
        raise OperationError(f"--timestamp cannot be {timestamp!r}; write a time after 1970-01-01T00:00:00Z")
    pairs = parse_assignments(headers or [], option="--header", example="source=shop")
    left_out: list[int] = []
    try:
        source = nullcontext(sys.stdin) if file is None else file.open(encoding="utf-8")
    except OSError as error:
        raise OperationError(f"{file} cannot be read: {error.strerror}; name another --file") from None
    with source as lines, _cluster(directory, bootstrap_servers, assignments) as (admin, settings):
        if file is None and sys.stdin.isatty():
            notices.print("one record per line; end with Ctrl-D")
        queued = 0

        def records() -> Iterator[Sent]:
            nonlocal queued
            for record in records_of(lines, key_field=key_field, time_field=time_field, left_out=left_out):
                yield record
                queued += 1

        try:
            sent = send(
                admin,
                settings.kafka,
                topic,
                records(),
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=[(name, value.encode()) for name, value in pairs.items()],
            )
        except OperationError as error:
            if not queued:
                raise
            before, them = ("was", "it") if queued == 1 else ("were", "them")
            raise OperationError(
                f"{error}; {counted(queued, 'record')} before it {before} sent: leave {them} out when you try again"
            ) from None
    blank = f"; {counted(len(left_out), 'blank line')} left out" if left_out else ""
    console.print(
        f"{counted(sent, 'record')} sent to the topic {topic!r} at {admin.bootstrap_servers}{blank}",
        markup=False,
        soft_wrap=True,
    )


@kafka.command("consume", epilog="Example: weir kafka consume orders --from 2024-01-31T12:00:00Z --limit 10")
def consume(
    topic: TopicArgument,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|end|OFFSET|TIME",
            help="Where to begin in each partition; `end` waits for new records.",
        ),
    ] = "beginning",
    limit: Annotated[int, typer.Option(min=0, help="Stop after this many records; 0 for no limit.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new records until Ctrl-C.")] = False,
    partition: Annotated[int | None, typer.Option(min=0, help="Read this partition only.")] = None,
    with_headers: Annotated[bool, typer.Option("--headers", help="Print each record's headers too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Print records of a topic: partition, offset, time, key, value.

    Stops at the records that are there now, unless --follow is given. Within a partition, records are in order. Bytes
    that are not text are shown in base64, null as -. Needs no consumer group and commits nothing.
    """
    from weir.infra.kafka.records import read

    with _cluster(directory, bootstrap_servers, assignments) as (admin, settings):
        count = admin.partition_count(topic)
        partitions = _chosen(admin, topic, count, partition)
        ends = {each: offset for (_, each), offset in admin.end_offsets([(topic, each) for each in partitions]).items()}
        starts = _starts(admin, topic, begin, ends)
        is_endless = follow or begin == "end"
        printed = 0
        widest = max(len(str(end)) for end in ends.values())
        for record in read(admin, settings.kafka, topic, starts, ends=None if is_endless else ends):
            _print(record, widest, with_headers=with_headers, as_json=as_json, is_first=not printed)
            printed += 1
            if printed == limit:
                break
    if not printed and not as_json:
        notices.print(f"the topic {topic!r} has no records there", markup=False, soft_wrap=True)


def _chosen(admin: KafkaAdmin, topic: str, count: int, partition: int | None) -> list[int]:
    from weir.infra.kafka.admin import UnknownTopicError

    if partition is not None and partition >= count:
        raise UnknownTopicError(topic, admin.bootstrap_servers, partition)
    return list(range(count)) if partition is None else [partition]


def _starts(admin: KafkaAdmin, topic: str, begin: str, ends: dict[int, int]) -> dict[int, int | None]:
    """The offset at which to begin in each partition; None for its end at the time of reading."""
    from weir.pipelines.operations.records import time_ms_of

    partitions = [(topic, each) for each in ends]
    if begin == "end":
        return dict.fromkeys(ends)
    if begin == "beginning" or begin.isdecimal():
        first = {each: offset for (_, each), offset in admin.beginning_offsets(partitions).items()}
        wanted = int(begin) if begin.isdecimal() else 0
        if wanted > max(ends.values()):
            raise OperationError(
                f"no partition of the topic {topic!r} reaches offset {wanted:,}; they end at offset "
                f"{max(ends.values()):,} at most, so use a smaller --from, or --from end"
            )
        return {each: min(max(wanted, first[each]), ends[each]) for each in ends}
    if not begin[:1].isdigit():
        raise OperationError(
            f"--from cannot be {begin!r}; write beginning, end, an offset, or a time such as 2024-01-31T12:00:00Z"
        )
    found = admin.offsets_at(partitions, time_ms_of(begin, "--from"))
    return {each: ends[each] if found[topic, each] is None else found[topic, each] for each in ends}


def _print(record: Record, widest: int, *, with_headers: bool, as_json: bool, is_first: bool) -> None:
    from weir.pipelines.operations.records import iso_time, plain, shown

    time = iso_time(record.time_ms)
    if as_json:
        line: dict[str, Any] = {"partition": record.partition, "offset": record.offset, "time": time}
        if with_headers:
            line["headers"] = [{"name": name} | plain("value", value) for name, value in record.headers]
        print_json_line(line | plain("key", record.key) | plain("value", record.value))
        return
    width = max(widest, len("offset"))
    headers = ", ".join(f"{printable(name)}={shown(value)}" for name, value in record.headers) or "-"
    shown_headers = f"{headers}  " if with_headers else ""
    if is_first:
        title = "headers  " if with_headers else ""
        console.print(f"partition  {'offset':>{width}}  {'time':24}  {title}key  value", style="bold", soft_wrap=True)
    console.print(
        f"{record.partition:9}  {record.offset:{width}}  {time or '-':24}  {shown_headers}"
        f"{shown(record.key)}  {shown(record.value)}",
        markup=False,
        soft_wrap=True,
    )


@kafka.command("delete", epilog="Example: weir kafka delete orders --yes")
def delete(
    topic: TopicArgument,
    yes: YesOption = False,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Delete a topic with all its records. An application that reads it cannot continue without them."""
    with _cluster(directory, bootstrap_servers, assignments) as (admin, _):
        if (count := admin.topics().get(topic)) is None:
            raise OperationError(
                f"topic {topic!r} does not exist at {admin.bootstrap_servers}; `weir kafka list` shows those that do"
            )
        partitions = [(topic, each) for each in range(count)]
        begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
        records = counted(sum(ends[each] - begins[each] for each in partitions), "record")
        if not yes:
            confirm(
                f"Delete the topic {topic!r} with {records} at {admin.bootstrap_servers}?",
                f"weir kafka delete {topic}",
            )
        admin.delete_topic(topic)
    console.print(f"topic {topic!r} deleted, with {records}", markup=False, soft_wrap=True)
