"""Which options a store may have, and that each of them is said where the store is declared."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.state.engine.own_store import InMemory
from weir import (
    Application,
    FollowingStore,
    Int64,
    KeyValueStore,
    ListStore,
    Materialized,
    SessionStore,
    StreamsBuilder,
    String,
    TopologyError,
    VersionedKeyValueStore,
    WindowStore,
)

HOUR = timedelta(hours=1)


def materialized(**options):
    return Materialized("kept", **options)


DECLARATIONS = [
    materialized,
    lambda **options: KeyValueStore("kept", str, int, **options),
    lambda **options: WindowStore("kept", str, int, HOUR, HOUR, **options),
    lambda **options: SessionStore("kept", str, int, HOUR, **options),
    lambda **options: VersionedKeyValueStore("kept", str, int, HOUR, **options),
    lambda **options: ListStore("kept", str, int, **options),
]


@pytest.mark.parametrize("declare", DECLARATIONS)
def test_a_store_without_a_changelog_says_what_becomes_of_it(declare):
    assert not declare(logging=False).logging
    assert not declare(logging=False, on_loss="empty").logging
    with pytest.raises(TopologyError, match="leave on_loss out, or add logging=False"):
        declare(on_loss="empty")
    with pytest.raises(TopologyError, match="on_loss is 'nothing'; it must be \"empty\" or left out"):
        declare(logging=False, on_loss="nothing")
    with pytest.raises(TopologyError, match="logging is 'off'; it must be True or False"):
        declare(logging="off")


@pytest.mark.parametrize("declare", DECLARATIONS)
def test_a_store_is_in_memory_if_it_says_so(declare):
    assert declare(in_memory=True).in_memory
    assert not declare().in_memory
    with pytest.raises(TopologyError, match="in_memory is 'yes'; it must be True or False"):
        declare(in_memory="yes")


@pytest.mark.parametrize("options", [{}, {"ttl": HOUR}, {"history_retention": HOUR}])
def test_the_specs_of_tables_have_the_options(options):
    builder = StreamsBuilder()
    store = materialized(in_memory=True, logging=False, on_loss="empty")
    builder.table("in", key=String("user"), value=Int64("n"), store=store, **options)
    (spec,) = Application("app", builder).topology.sub_topologies[0].stores
    assert (spec.is_in_memory, spec.is_logged, spec.is_rebuilt) == (True, False, False)


@pytest.mark.parametrize("declare", DECLARATIONS[1:])
def test_the_specs_of_processors_stores_have_the_options(declare):
    assert declare().spec().is_logged
    assert (declare().spec().is_in_memory, declare(in_memory=True).spec().is_in_memory) == (False, True)
    assert not declare(logging=False, on_loss="empty").spec().is_logged


def test_a_materialized_store_without_options_is_as_one_by_name():
    def store_of(named):
        builder = StreamsBuilder()
        builder.table("in", key=String("user"), value=Int64("n"), store=named)
        return Application("app", builder).topology

    assert store_of("kept").fingerprint == store_of(Materialized("kept")).fingerprint
    unlogged = store_of(Materialized("kept", logging=False, on_loss="empty"))
    assert unlogged.fingerprint != store_of("kept").fingerprint
    assert not unlogged.sub_topologies[0].stores[0].is_logged


def test_a_store_of_ones_own_needs_its_changelog():
    with pytest.raises(TopologyError, match="leave logging=False out, or let Weir keep the rows"):
        Materialized("kept", InMemory, logging=False, on_loss="empty")


def test_no_store_follows_one_without_a_changelog():
    class Copy(FollowingStore):
        name = "copy"

        def put_rows(self, rows):
            pass

    def application(**options):
        builder = StreamsBuilder()
        builder.table("in", key=String("user"), value=Int64("n"), store=Materialized("kept", **options))
        return Application("app", builder, own_stores={"kept": lambda folder: Copy()})

    with pytest.raises(TopologyError, match="has no changelog that a store could follow; leave logging=False out"):
        application(logging=False, on_loss="empty")
    application()
