"""The peers of the bench: what Weir is measured beside. Each implements ``bench.peers.peer.Peer``."""

from __future__ import annotations

from bench.peers.flink import FlinkPeer
from bench.peers.kafka_streams import KafkaStreamsPeer
from bench.peers.peer import Peer

__all__ = ["DEFAULT", "PEERS", "QUICK"]

PEERS: tuple[Peer, ...] = (
    KafkaStreamsPeer(),
    FlinkPeer("sql", "rocksdb"),
    FlinkPeer("sql", "heap"),
    FlinkPeer("datastream", "rocksdb"),
    FlinkPeer("datastream", "heap"),
)
DEFAULT = ("kafka-streams", "flink-sql-rocksdb")
"""With more, a bench takes hours."""
QUICK = ("kafka-streams",)
