"""Processes dead letters again, as rows of their own epoch, and marks them in the same commit (PROTOCOL 36).

A letter is taken after everything that its task has taken so far, with the time that its record has. One that fails
becomes a dead letter again, under another id. Which letters go to which task belongs to
``weir.pipelines.spark.replays``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

import msgspec
import numpy as np
import polars as pl

from weir.pipelines.on_error import ErrorHandling
from weir.pipelines.serdes.headers import headers_column
from weir.pipelines.serdes.source import RAW_SCHEMA, BadRecord, RawRecords, decode_source
from weir.pipelines.serdes.timestamps import UNKNOWN_MS
from weir.pipelines.tasks.dead_letters import Letter
from weir.pipelines.tasks.order import Turns, last_key
from weir.pipelines.topology import SubTopology

PUT_ASIDE = ErrorHandling(deserialization="dead_letter", processing="dead_letter", overrules_expectations=True)
"""What becomes of letters that fail again, whatever the application does with other records."""


class Replayed(msgspec.Struct, frozen=True):
    """A driver's answer to a request to replay letters."""

    ids: tuple[str, ...]
    """The letters that are processed again."""
    misfits: dict[str, int]
    """By topic or repartition, how many are not, since the program does not read it, or not in that form."""
    waiting: int
    """How many more there are to ask for."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Letters of one topic or repartition, to be taken together."""

    turns: Turns
    first: int
    """The place of its first letter among those of the epoch."""
    raws: Mapping[str, RawRecords]
    """As for ``Attempts``."""
    bad: Sequence[BadRecord]
    """Those that cannot be read this time either."""


@dataclass(frozen=True)
class _Raw:
    topic: str
    partition: int
    frame: pl.DataFrame


def batches(
    letters: Sequence[Letter],
    sub_topology: SubTopology,
    clocks: Mapping[str, int],
    partition_times_ms: Mapping[str, int],
    now_ms: int,
) -> Iterator[Batch]:
    """The letters in order, batch by batch; each batch has one topic or repartition, and no offset twice.

    ``partition_times_ms``, by topic, and ``now_ms`` are for timestamp extractors.
    """
    sources = {source.topic: source for source in sub_topology.sources}
    schemas = {edge.name: edge.schema for edge in sub_topology.edges_in}
    start = 0
    while start < len(letters):
        topic, stop, seen = letters[start].topic, start, set[int]()
        while stop < len(letters) and letters[stop].topic == topic and letters[stop].offset not in seen:
            seen.add(letters[stop].offset)
            stop += 1
        part = letters[start:stop]
        if topic in sources:
            raw = _raw(part, has_headers=sources[topic].has_headers)
            decoded = decode_source(
                sources[topic], raw, now_ms=now_ms, partition_time_ms=partition_times_ms.get(topic, UNKNOWN_MS)
            )
            yield Batch(turns=_turns(topic, decoded.frame, clocks), first=start, raws={topic: raw}, bad=decoded.bad)
        else:
            rows = pl.concat([_row(letter) for letter in part]).select_seq(schemas[topic].keys())
            yield Batch(turns=_turns(topic, rows, clocks), first=start, raws={}, bad=())
        start = stop


def fits(letter: Letter, sub_topology: SubTopology) -> bool:
    """Whether the sub-topology takes it: it reads the topic, or has the repartition with the columns of the row."""
    if letter.topic in {source.topic for source in sub_topology.sources}:
        return True
    schema = next((edge.schema for edge in sub_topology.edges_in if edge.name == letter.topic), None)
    return schema is not None and letter.row is not None and _row(letter).schema.items() >= schema.items()


def failed_again(letters: Sequence[Letter], dead: Sequence[BadRecord]) -> dict[int, BadRecord]:
    """Of the letters that failed, by their places, what became of them."""
    found = {(record.topic, record.offset): record for record in dead}
    places = (
        (place, (letter.topic, letter.offset if letter.row is None else place)) for place, letter in enumerate(letters)
    )
    return {place: found[key] for place, key in places if key in found}


def _row(letter: Letter) -> pl.DataFrame:
    assert letter.row is not None
    return pl.read_ipc(BytesIO(letter.row))


def _raw(letters: Sequence[Letter], *, has_headers: bool) -> _Raw:
    rows = [(letter.key, letter.value, letter.timestamp_ms, letter.offset) for letter in letters]
    frame = pl.DataFrame(rows, schema=RAW_SCHEMA, orient="row")
    if has_headers:
        frame = frame.with_columns_seq(headers_column(letter.headers or () for letter in letters).alias("headers"))
    return _Raw(letters[0].topic, letters[0].partition, frame)


def _turns(name: str, frame: pl.DataFrame, clocks: Mapping[str, int]) -> Turns:
    """The rows, each with the key of the last row that the task has taken."""
    if frame.is_empty():
        return Turns()
    merge_ms, origins = (np.full(frame.height, part, np.int64) for part in last_key(clocks))
    return Turns(frames={name: frame}, places={name: np.arange(frame.height)}, merge_ms=merge_ms, origins=origins)
