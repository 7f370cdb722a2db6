"""The peers of the bench: what Weir is measured beside. Each implements ``bench.peers.peer.Peer``."""

from __future__ import annotations

from bench.peers.flink import FlinkPeer
from bench.peers.kafka_streams import KafkaStreamsPeer
from bench.peers.pathway import PathwayPeer
from bench.peers.peer import Peer
from bench.peers.pyflink import PyFlinkPeer
from bench.peers.python import PythonPeer
from bench.peers.spark import SparkPeer

__all__ = ["DEFAULT", "PEERS", "QUICK"]

PEERS: tuple[Peer, ...] = (
    KafkaStreamsPeer(),
    FlinkPeer("sql", "rocksdb"),
    FlinkPeer("sql", "heap"),
    FlinkPeer("datastream", "rocksdb"),
    FlinkPeer("datastream", "heap"),
    PythonPeer(
        "bytewax",
        "Bytewax",
        "at least once",
        ("bytewax==0.21.1", "confluent-kafka==2.12.2", "orjson==3.11.4"),
        "bytewax_sum.py",
        until="exited",
        settings={"epoch_interval": "1 s", "recovery": "snapshots on disk", "batch_size": "10000"},
    ),
    PythonPeer(
        "quix",
        "Quix Streams",
        "exactly once",
        ("quixstreams==3.28.1", "confluent-kafka==2.12.2", "orjson==3.11.4"),
        "quix_sum.py",
        until="committed",
        settings={"processing_guarantee": "exactly-once", "commit_interval": "1 s", "state": "RocksDB with changelogs"},
    ),
    PyFlinkPeer(),
    PathwayPeer(),
    SparkPeer(),
)
DEFAULT = ("kafka-streams", "flink-sql-rocksdb", "bytewax", "quix")
"""With all of Flink, a bench takes hours."""
QUICK = ("kafka-streams",)
