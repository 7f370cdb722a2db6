"""Two real brokers, of which the one that leads dies and the other takes its place, with all records."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.kafka_cluster import BROKERS, kafka_cluster
from tests.waiting import wait_for
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.infra.kafka.log_ends import LogEnd
from weir.infra.kafka.reader import PartitionReader

pytestmark = [pytest.mark.faults, pytest.mark.broker]

TOPIC, OTHER, PLACE = "visits", "pages", ("visits", 0)
FIRST, SECOND = BROKERS
LIMIT_S = 60.0


def test_the_log_goes_on_under_its_new_leader_and_nobody_asks_the_dead_one_for_long(tmp_path):
    """And a partition that is read through the same client goes on all the time."""
    with kafka_cluster(tmp_path / "cluster") as cluster:
        cluster.create_topic(TOPIC, FIRST, SECOND)
        servers = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        cluster.create_topic(OTHER, SECOND, FIRST)
        producer, reader, beside = (
            Producer(servers),
            PartitionReader(servers, *PLACE),
            PartitionReader(servers, OTHER, 0),
        )
        admin = KafkaAdmin(cluster.bootstrap_servers, time_limit_s=4.0)
        producer.produce(TOPIC, b"before")
        producer.produce(OTHER, b"before")
        assert producer.flush(LIMIT_S) == 0
        assert admin.log_ends([PLACE]) == {PLACE: LogEnd(1, 0)}
        assert reader.read(0, 1).next_offset == 1
        assert beside.read(0, 1).next_offset == 1

        cluster.kill(FIRST)
        producer.produce(OTHER, b"after")
        assert producer.flush(LIMIT_S) == 0
        assert reader.read(1, 2, patience_s=0.1).next_offset == 1
        assert beside.read(1, 2, patience_s=LIMIT_S).frame["value"].to_list() == [b"after"], "its leader is there"
        with pytest.raises(
            BrokerUnreachableError
        ):  # now the client has heard from the other one that the dead one leads
            admin.log_ends([PLACE])
        wait_for(lambda: cluster.leader(TOPIC) == SECOND, "the other leads", LIMIT_S, every_s=0.2)
        producer.produce(TOPIC, b"after")
        assert producer.flush(LIMIT_S) == 0

        def ends() -> dict[tuple[str, int], LogEnd]:
            try:
                return admin.log_ends([PLACE])
            except BrokerUnreachableError:
                return {}

        wait_for(lambda: ends() == {PLACE: LogEnd(2, 1)}, "the new leader is asked", LIMIT_S)
        wait_for(lambda: reader.read(1, 2).next_offset == 2, "the new leader is read", LIMIT_S)
        assert admin.beginning_offsets([PLACE]) == {PLACE: 0}
        for each in (reader, beside):
            each.close()
