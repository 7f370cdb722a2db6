"""``to_delta(mode="upsert")``: what it adds to the topology, and which outputs cannot have it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from weir import Application, BufferConfig, StreamsBuilder, String, Suppressed, TimeWindows, TopologyError
from weir.testing import TopologyTestDriver


def clicks(builder: StreamsBuilder | None = None):
    return (builder or StreamsBuilder()).stream("clicks", key=String("user"), value=String("page"))


def counts():
    return clicks().group_by_key().count("counts")


def final():
    windows = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    return (
        clicks()
        .group_by_key()
        .windowed_by(windows)
        .count("by_minute")
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    )


def test_commits_write_the_updates_to_a_table_of_their_own_and_people_know_the_output_by_its_name():
    builder = StreamsBuilder()
    clicks(builder).group_by_key().count("counts").to_delta("counts", mode="upsert")
    topology = builder.build()
    (spec,) = topology.table_specs()
    assert (spec.name, spec.keys) == ("_updates/counts", ("user",))
    assert spec.schema.names() == ["user", "count", "_ts", "_epoch", "_seq", "_deleted"]
    assert topology.sinks[0].refresh_ms == 5_000
    assert topology.committed_form.outputs == ("counts",)
    assert "(table: counts)" in topology.describe()


def test_the_mode_is_part_of_what_tells_programs_apart_and_the_interval_is_not():
    def fingerprint(**output) -> str:
        builder = StreamsBuilder()
        clicks(builder).group_by_key().count("counts").to_delta("counts", **output)
        return builder.build().fingerprint

    assert fingerprint() == fingerprint(mode="append")
    assert fingerprint() != fingerprint(mode="upsert")
    assert fingerprint(mode="upsert") == fingerprint(mode="upsert", refresh=timedelta(minutes=1))


def test_the_test_driver_has_every_update_under_the_name_of_the_output():
    builder = StreamsBuilder()
    clicks(builder).group_by_key().count("counts").to_delta("counts_now", mode="upsert")
    with TopologyTestDriver(Application("example", builder)) as driver:
        driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/"), ("ann", "/docs")])
        assert driver.create_output_table("counts_now").read_rows() == [
            {"user": "ann", "count": 1},
            {"user": "ann", "count": 2},
        ]


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (
            lambda: clicks().to_delta("pages", mode="upsert"),
            r"'pages' got mode='upsert', but every record of a stream counts; leave the mode out, or make a table of "
            r'the newest record per key first: to_table\("pages"\).to_delta\("pages", mode="upsert"\)',
        ),
        (lambda: final().to_delta("minutes", mode="upsert"), r'final.* leave the mode out: to_delta\("minutes"\)'),
        (lambda: counts().to_delta("t", mode="merge"), 'mode is \'merge\'; it must be "append" or "upsert"'),
        (lambda: counts().to_delta("t", refresh=timedelta(1)), 'leave refresh= out, or add mode="upsert"'),
        (lambda: counts().to_delta("t", mode="upsert", emit="record"), 'leave emit="record" out'),
        (lambda: counts().to_delta("t", mode="upsert", refresh=timedelta(0)), "refresh"),
    ],
)
def test_what_cannot_have_one_row_per_key_is_refused_with_the_way_out(describe, message):
    with pytest.raises(TopologyError, match=message):
        describe()


def test_each_way_out_works():
    clicks().to_table("pages").to_delta("pages", mode="upsert")
    clicks().to_delta("pages")
    final().to_delta("minutes")
    counts().to_delta("t", mode="upsert", refresh=timedelta(1))
    counts().to_delta("t", mode="upsert")
    counts().to_delta("t")
