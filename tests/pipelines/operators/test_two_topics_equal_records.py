"""Where two topics meet, any cut of the input into batches gives what one record at a time gives."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from polars import col

from pipelines import Count, StreamsBuilder, Sum
from tests.pipelines.operators.two_topics import CUTS, RECORDS, build, left, picked, right, run


def diamond(builder: StreamsBuilder) -> None:
    stream = left(builder)
    later = stream.filter(col("amount") > 3)
    stream.map_values(amount=-col("amount"), word="word").merge(later).to_delta("out")


def repartitioned(builder: StreamsBuilder) -> None:
    left(builder).merge(right(builder)).group_by("word").agg("s", n=Count())


PROGRAMS = {
    "merge": lambda b: left(b).filter(col("amount") > 3).merge(right(b)).to_delta("out"),
    "merge, aggregated": lambda b: left(b).merge(right(b)).group_by_key().agg(
        "s", n=Count(), total=Sum("amount")).to_stream().to_delta("out"),
    "merge of branches of one stream": diamond,
    "merge, repartitioned": repartitioned,
}


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=25, deadline=None)
@given(records=RECORDS, cuts=CUTS)
def test_any_cut_into_batches_gives_what_single_records_give(name, records, cuts):
    sub_topology = build(PROGRAMS[name])
    order = picked(records, sub_topology.inputs)
    if not order:
        return
    bounds = [0, *sorted(cut for cut in cuts if cut < len(order)), len(order)]
    batched = run(sub_topology, [order[start:end] for start, end in pairwise(bounds)])
    single = run(sub_topology, [[record] for record in order])
    assert batched == single
