"""How soon a killed application commits again: ``python -m bench.restart [--keys N] [--rate N] [--commit-ms N]`` prints
one JSON object.

A producer sends events of 68 bytes at a fixed rate; an application sums them per key, exactly once, and holds a row for
each of so many keys. Then all its processes get SIGKILL, and it is started again at once, over the state on its disk.
Seconds from the start of the new process to the first commit that holds a record sent after the kill, and to one that
holds such records of each partition; beside them, the processor time of the new processes until then. Weir is seen in
its commit log, Kafka Streams by the committed offsets of its group. Sides take turns, the first turns of all, then the
second, and so on; broker, producer and observer share the cores.

Kafka Streams keeps its folder, and with it the id that lets its new process end the transaction of the old one at once.
``kafka-streams`` misses a member after ``SESSION_MS``, which the broker of the bench allows, ``kafka-streams-6s`` after
the least that Kafka's brokers allow by default, and ``kafka-streams-static`` is known by ``group.instance.id``: its new
process takes the place of the old one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from bench import cluster
from bench.events import PARTITIONS, SMALL_BYTES, make_events
from bench.live import producing
from bench.memory import peak_memory, process_tree
from bench.peers.kafka_streams import KafkaStreamsPeer
from bench.peers.peer import Run
from bench.processes import ROOT, BenchError
from bench.restore import with_distinct_keys
from weir.infra.process import end_with_parent
from weir.state.commit.log import COMMITS, newest_commit
from weir.state.storage.places import folder_at

TOPIC = "events_restart"
SESSION_MS, LEAST_SESSION_MS = 1_000, 6_000
LIVE_S = 5.0
"""How long an application commits what is sent to it before it is killed."""
LIMIT_S, LOOK_S = 60.0, 0.002

PROGRAMS = Path(__file__).parent / "programs"
APPLICATIONS = {100: "each_100_ms", 1_000: "each_second"}
"""Those of ``programs/live_sums.py``, by how far apart their commits are in ms."""

Offsets = Mapping[int, int]
"""By partition, the next offset to read."""


class Side(Protocol):
    """An application that can be started again."""

    name: str

    def command(self) -> Sequence[str]: ...

    def committed(self) -> Offsets: ...


class Weir:
    """``weir run``, with the settings that it has by default."""

    name = "weir"

    def __init__(self, folder: Path, commit_ms: int) -> None:
        self._folder, self._commit_ms = folder, commit_ms
        self._seen = ""
        """The newest entry of the log that was read."""
        self._offsets: Offsets = {}

    def command(self) -> Sequence[str]:
        weir = str(Path(sys.executable).with_name("weir"))
        program = f"live_sums:{APPLICATIONS[self._commit_ms]}"
        return [weir, "run", program, "--dir", str(self._folder), "--set", "slots=2"]

    def committed(self) -> Offsets:
        warehouse, application = self._folder / "warehouse", f"live_sums_{self._commit_ms}"
        log = warehouse / application / COMMITS.name / "_delta_log"
        entries = os.listdir(log) if log.exists() else []
        entry = max((name for name in entries if name.endswith(".json")), default="")
        if entry != self._seen:
            newest = newest_commit(folder_at(warehouse), application)
            self._seen = entry
            if newest is not None:
                self._offsets = {
                    partition: offset
                    for task in newest.tasks.values()
                    for partition, offset in task.positions.get(TOPIC, {}).items()
                }
        return self._offsets


class KafkaStreams:
    """The peer's job ``sum_live`` with other settings."""

    def __init__(
        self, peer: KafkaStreamsPeer, client: Path, folder: Path, name: str, commit_ms: int, settings: Mapping[str, str]
    ) -> None:
        self.name, self._peer = name, peer
        self._settings = {"commit.interval.ms": str(commit_ms), **settings}
        folder.mkdir()
        self._run = Run(job="sum_live", client=client, topic=TOPIC, output=name, state=folder, closed_by_ms=0)
        self._admin = AdminClient({**cluster.properties(client)})
        cluster.admin(client).create_topic(name, PARTITIONS)

    def command(self) -> Sequence[str]:
        return [*self._peer.command(self._run), *(f"{name}={value}" for name, value in self._settings.items())]

    def committed(self) -> Offsets:
        found = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.name)])[self.name].result()
        return {each.partition: each.offset for each in found.topic_partitions if each.topic == TOPIC}


def kafka_streams(client: Path, folder: Path, commit_ms: int) -> Iterator[KafkaStreams]:
    """With each way to be noticed again."""
    peer = KafkaStreamsPeer()
    (folder / "classes").mkdir()
    peer.install(folder / "classes")
    soon = {"session.timeout.ms": str(SESSION_MS), "heartbeat.interval.ms": str(SESSION_MS * 3 // 10)}
    default = {"session.timeout.ms": str(LEAST_SESSION_MS), "heartbeat.interval.ms": str(LEAST_SESSION_MS * 3 // 10)}
    for name, settings in {
        "kafka-streams": soon,
        "kafka-streams-6s": default,
        "kafka-streams-static": {**default, "group.instance.id": "restart"},
    }.items():
        yield KafkaStreams(peer, client, folder / name, name, commit_ms, settings)


def turn(side: Side, client: Path, folder: Path) -> dict[str, float]:
    """Start a side, let it commit what is sent, kill it, and see how soon it commits again."""
    with _Started(side, client, folder) as first:
        first.wait(partial(_holds_all, _ends(client)))
        time.sleep(LIVE_S)
    ends = _ends(client)
    began_s = time.monotonic()
    with _Started(side, client, folder) as second, peak_memory(second.process.pid) as used:
        second.wait(partial(_holds_any, ends))
        first_s, cpu_s = time.monotonic() - began_s, used.cpu_seconds
        second.wait(partial(_holds_all, ends))
        all_s = time.monotonic() - began_s
    return {"first_commit_s": first_s, "all_partitions_s": all_s, "cpu_s": cpu_s}


def _holds_any(ends: Offsets, committed: Offsets) -> bool:
    return any(committed.get(partition, 0) > end for partition, end in ends.items())


def _holds_all(ends: Offsets, committed: Offsets) -> bool:
    return all(committed.get(partition, 0) > end for partition, end in ends.items())


class _Started:
    """A side that has been started; at the end of the block it is killed, with all that it has started."""

    def __init__(self, side: Side, client: Path, folder: Path) -> None:
        self._side, self._said = side, folder / f"{side.name}.out"
        # As an installed Weir, it has bytecode when it is started again.
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with open(self._said, "w") as said:
            self.process = subprocess.Popen(
                side.command(),
                stdout=said,
                stderr=said,
                cwd=ROOT,
                env={
                    **own,
                    **cluster.variables(client),
                    "PYTHONPATH": f"{ROOT}:{PROGRAMS}",
                    "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
                },
                preexec_fn=end_with_parent(),
            )

    def wait(self, is_enough: Callable[[Offsets], bool]) -> None:
        """Until what it has committed is enough."""
        began_s = time.monotonic()
        while not is_enough(self._side.committed()):
            if self.process.poll() is not None or time.monotonic() - began_s > LIMIT_S:
                raise BenchError(f"{self._side.name} commits nothing:\n{self._said.read_text()[-2000:]}")
            time.sleep(LOOK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self.process.pid, *process_tree(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.wait()


def _ends(client: Path) -> Offsets:
    found = cluster.admin(client).end_offsets([(TOPIC, partition) for partition in range(PARTITIONS)])
    return {partition: end for (_, partition), end in found.items()}


def summary(turns: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """By side the medians, how long each turn took, and how many times that Weir takes, if it was there."""
    medians = {
        side: {what: statistics.median(each[what] for each in found) for what in found[0]}
        for side, found in turns.items()
    }
    mine = medians.get("weir")
    return {
        side: {
            "medians": {what: round(value, 2) for what, value in medians[side].items()},
            "first_commit_s": [round(each["first_commit_s"], 2) for each in found],
            **({"weir_takes": round(mine["first_commit_s"] / medians[side]["first_commit_s"], 2)} if mine else {}),
        }
        for side, found in turns.items()
    }


def main(keys: int, rate: int, commit_ms: int, rounds: int, names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name, cluster.embedded(Path(name, "broker")) as client:
        folder = Path(name)
        make_events(client, TOPIC, keys, SMALL_BYTES, partial(with_distinct_keys, keys))
        peers = () if names == ["weir"] else kafka_streams(client, folder, commit_ms)
        sides: list[Side] = [Weir(folder / "weir", commit_ms), *peers]
        turns: dict[str, list[dict[str, float]]] = {}
        for _ in range(rounds):
            for side in sides:
                if names and side.name not in names:
                    continue
                with producing(client, TOPIC, rate, keys, partial(with_distinct_keys, keys)):
                    turns.setdefault(side.name, []).append(turn(side, client, folder))
                print(side.name, turns[side.name][-1], os.getloadavg()[0], file=sys.stderr, flush=True)
    print(json.dumps({"keys": keys, "rate": rate, "commit_ms": commit_ms, **summary(turns)}, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description="How soon a killed run commits again.")
    parser.add_argument("--keys", type=int, default=200_000, help="rows of state")
    parser.add_argument("--rate", type=int, default=5_000, help="events a second")
    parser.add_argument("--commit-ms", type=int, default=100, choices=APPLICATIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", action="append", default=[], help="only this side; may be repeated")
    arguments = parser.parse_args()
    main(arguments.keys, arguments.rate, arguments.commit_ms, arguments.rounds, arguments.side)
