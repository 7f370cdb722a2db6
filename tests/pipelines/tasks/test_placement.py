"""Topics whose keys are where Kafka's default partitioner puts them, and other topics."""

import zlib

import polars as pl
import pytest

from tests.pipelines.operators.programs import Click
from weir import Count, Json, StreamsBuilder, String
from weir.infra.kafka.raw_records import RawRecords
from weir.pipelines.errors import PartitionerError
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.serdes.source import RAW_SCHEMA
from weir.pipelines.tasks.placement import check_placement

KEYS = [b"user-%d" % number for number in range(400)]


def read(keys: list[bytes | None], partition: int = 1) -> RawRecords:
    frame = pl.DataFrame([(key, b"{}", 0, offset) for offset, key in enumerate(keys)], schema=RAW_SCHEMA, orient="row")
    return RawRecords("users", partition, frame, len(keys))


def in_partition(partition: int, partitions: int) -> list[bytes]:
    return [key for key in KEYS if int(murmur2([key])[0] & 0x7FFFFFFF) % partitions == partition]


@pytest.mark.parametrize("partitions", [2, 3, 12])
def test_another_partitioner_is_noticed(partitions):
    by_crc = [key for key in KEYS if zlib.crc32(key) % partitions == 1]
    with pytest.raises(PartitionerError, match=rf"'users'.*\d+ of {len(by_crc)} keys"):
        check_placement(read(by_crc), partitions)


@pytest.mark.parametrize("partitions", [2, 3, 12])
def test_keys_in_place_pass_and_so_do_null_keys_and_a_few_misplaced_ones(partitions):
    there, elsewhere = in_partition(1, partitions), in_partition(0, partitions)
    check_placement(read(there), partitions)
    check_placement(read([None, *there, *elsewhere[: len(there) // 4], None]), partitions)
    check_placement(read(elsewhere[:3]), partitions)
    check_placement(read([elsewhere[0]] * 100), partitions)
    check_placement(read([]), partitions)


def test_with_one_partition_every_partitioner_agrees():
    check_placement(read(KEYS, partition=0), 1)


def test_topics_are_checked_where_rows_look_up_their_keys_after_a_repartition():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    users = builder.table("users", key=String("user"), value=Json(Click), store="users")
    pages = builder.table("pages", key=String("page_key"), value=Json(Click), store="pages")
    clicks.join(users).to_delta("by_user")  # both use the same partitioner, whichever it is
    clicks.select_key(page_key="page").join(pages).group_by("page_right").agg("n", n=Count()).to_delta("counts")
    users.join(users, foreign_key="page").to_delta("friends")
    assert [set(sub_topology.sought_topics) for sub_topology in builder.build().sub_topologies] == [
        {"users"},
        {"pages"},
        set(),
    ]
