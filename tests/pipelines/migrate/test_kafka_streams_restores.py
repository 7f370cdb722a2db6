"""Kafka Streams restores its stores from what Weir writes, and goes on with the right results.

``weir_changelogs.txt`` has the bytes that Weir wrote, and what a real Kafka Streams made of them and of a few more
records: printed by tests/integration/java/RestoreChangelogs.java. The file is written anew by
``python -m tests.pipelines.migrate.test_kafka_streams_restores``, and is then to be given to that program.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.pipelines.migrate.every_store import TOPICS, program
from tests.pipelines.migrate.kafka_streams_bytes import RECORDS, cluster
from tests.pipelines.spark.inline import Place, Topics
from weir.pipelines.migrate import KafkaStreamsApp
from weir.pipelines.migrate.kafka_streams_return import KafkaStreamsReturn
from weir.state.commit.protocol import newest_commit

FILE = Path(__file__).with_name("weir_changelogs.txt")
HEAD = (
    "# What Weir writes to the changelogs, and what Kafka Streams 4.3.1 makes of it and of a few more records.",
    "# store, timestamp, key, value, headers (hexadecimal; null: time of the writing, -: no value); > begins a result",
)
READ_BY_WEIR = (
    ("clicks", "ann", "exit", 16_000),
    ("buys", "ann", "cap", 12_500),
    ("tiers", "ann", "tin", 15_000),
    ("users", "eve", "fr", 5_000),
    ("clicks", "bob", "see", 17_000),
    ("orders", "o4", "bob", 6_000),
)


def written_by_weir(folder: Path) -> list[str]:
    """Kafka Streams' state goes to Weir, Weir reads a few records, and the state goes back: lines of the file."""
    topics, counts = Topics(), dict.fromkeys(TOPICS, 1)
    for topic, key, value, time in (*RECORDS, *READ_BY_WEIR):
        topics.rows.setdefault((topic, 0), []).append((key.encode(), value and value.encode(), time))
    place, left = Place(program("moved"), topics, folder, max_records=1), cluster()
    app = KafkaStreamsApp(
        id="app", application=place.application, cluster=left, reader=left.reader, topic_counts=counts
    )
    assert app.migration().write(place.warehouse)
    assert place.run().records_in == len(READ_BY_WEIR)
    left.offsets = {}
    back = KafkaStreamsReturn(
        id="back",
        application=place.application,
        commit=newest_commit(place.warehouse, "moved"),
        app_folder=place.warehouse / "moved",
        cluster=left,
        reader=left.reader,
        topic_counts=counts,
    )
    back.write(back.plan(), left)
    return [
        " ".join(
            (
                topic.removeprefix("back-").removesuffix("-changelog"),
                str(time) if time else "null",
                key.hex(),
                "-" if value is None else value.hex(),
                *(f"{name}={content.hex()}" for name, content in left.headers.get(topic, ())),
            )
        )
        for (topic, _), rows in sorted(left.rows.items())
        if topic.startswith("back-")
        for key, value, time in sorted(rows, key=lambda row: (row[2], row[0]))
    ]


def test_weir_writes_the_bytes_that_kafka_streams_has_restored(tmp_path):
    kept = [line for line in FILE.read_text().splitlines() if line[0] not in "#>"]
    assert written_by_weir(tmp_path) == kept


def test_kafka_streams_goes_on_with_the_right_results():
    """The records it read then are in RestoreChangelogs.java; stream time was 17,000 before."""
    found = sorted(line[2:].partition(" ")[2] for line in FILE.read_text().splitlines() if line[0] == ">")
    assert found == sorted(
        (
            # sessions: ann's from 11,500 to 16,000 had two clicks, two more join; bob's had one at 17,000
            "visits ann 11500 16000 = null",
            "visits ann 11500 18000 = 3",
            "visits ann 11500 18000 = null",
            "visits ann 11500 18000 = 4",
            "visits bob 17000 17000 = null",
            "visits bob 16800 17000 = 2",
            "visits eve 40000 40000 = 1",
            # final results of the windows still open; Weir has forwarded those from 0
            "finals ann 10000 = 4",
            "finals bob 10000 = 2",
            # 20 s after each user's first click: all clicks so far
            "slow ann = 6",
            "slow bob = 4",
            # the tier at each click's own time
            "tiered ann = more+tin",
            "tiered ann = peek+silver",
            "tiered bob = old+steel",
            # o2 is ann's, o3 eve's, o4 bob's
            "buyers o2 = ann+au",
            "buyers o4 = bob+be",
            "buyers o3 = gone",
            "buyers o2 = gone",
            # at most 3 s apart: ring with the click that waited and the new one, peek with a purchase from before
            "near ann = exit+ring",
            "near ann = more+ring",
            "near ann = peek+cap",
            "near bob = see+null",
            "near bob = old+null",
        )
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text("\n".join((*HEAD, *written_by_weir(Path(folder)), "")))
