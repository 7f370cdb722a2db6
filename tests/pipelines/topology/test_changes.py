"""What a comparison shows of a changed program whose stores have the same names, columns and windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from polars import col

from tests.pipelines.topology.programs import MINUTE, committed, held
from weir import BufferConfig, First, Int64, Json, StreamsBuilder, String, Sum, Suppressed, TimeWindows
from weir.pipelines.topology.changes import Fate, SettingChange, StoreChange, TopologyChange, compare
from weir.pipelines.topology.topology import Topology
from weir.state.commit.record import CommitRecord


@dataclass(frozen=True)
class Order:
    customer: str | None
    payer: str | None


def change(before: Topology, now: Topology) -> TopologyChange:
    return compare(committed(before), now, dict.fromkeys(range(len(now.sub_topologies)), 1))


def by_foreign_key(foreign_key) -> Topology:
    """Orders with the customer that they name, in the store ``named``."""
    builder = StreamsBuilder()
    orders = builder.table("orders", key=String("id"), value=Json(Order), store="orders")
    customers = builder.table("customers", key=String("id"), value=Int64("tier"), store="customers")
    orders.join(customers, foreign_key=foreign_key, store="named").to_stream().to_delta("out")
    return builder.build()


def kept(ttl: timedelta | None) -> Topology:
    builder = StreamsBuilder()
    builder.table("rates", key=String("currency"), value=Int64("rate"), store="rates", ttl=ttl).to_delta("out")
    return builder.build()


def payer(order: Order) -> str | None:
    return order.payer


def customer(order: Order) -> str | None:
    return order.customer


def test_a_foreign_key_of_other_columns_rebuilds_what_is_kept_by_it():
    found = change(by_foreign_key("customer"), by_foreign_key("payer"))
    assert found.of(Fate.IS_REBUILT) == ("named-subscription-store",)
    assert (found.loses_state, found.is_other_topology) == (True, True)
    assert change(by_foreign_key("customer"), by_foreign_key(col("customer"))).settings == ()


@pytest.mark.parametrize(
    ("before", "now", "texts"),
    [(col("customer"), col("customer").str.to_uppercase(), str), (customer, payer, lambda function: function.__name__)],
)
def test_a_changed_foreign_key_of_the_same_columns_or_of_a_function_is_shown(before, now, texts):
    found = change(by_foreign_key(before), by_foreign_key(now))
    assert found.settings == (
        SettingChange(store="named-subscription-store", setting="foreign key", before=texts(before), now=texts(now)),
    )
    assert not found.loses_state


def test_a_changed_grace_and_a_changed_history_are_shown_and_the_state_is_kept():
    assert change(held().build(), held().build()).settings == ()
    found = change(held().build(), held(grace=2 * MINUTE, history=timedelta(days=1)).build())
    assert sorted((each.store, each.setting, each.before, each.now) for each in found.settings) == [
        ("rates", "retention", "0:10:00", "1 day, 0:00:00"),
        ("waiting", "grace", "0:01:00", "0:02:00"),
    ]
    assert set(found.of(Fate.GOES_ON)) == {"rates", "waiting"}


def test_a_commit_written_before_settings_were_kept_shows_none():
    before = committed(held().build())
    older = replace(before, topology=replace(before.topology, settings=None))
    assert compare(older, held(grace=2 * MINUTE).build(), {0: 1}).settings == ()


def test_a_changed_ttl_is_shown():
    found = change(kept(timedelta(hours=1)), kept(timedelta(hours=2)))
    assert [(each.before, each.now) for each in found.settings] == [("1:00:00", "2:00:00")]
    assert found.of(Fate.GOES_ON) == ("rates",)


@pytest.mark.parametrize(
    ("before", "now", "note"),
    [
        (None, timedelta(hours=1), "its rows expire, also those that it has"),
        (timedelta(hours=1), None, "its rows no longer expire"),
    ],
)
def test_a_store_whose_rows_begin_or_cease_to_expire_is_restored(before, now, note):
    found = change(kept(before), kept(now))
    assert found.stores == (StoreChange(store="rates", fate=Fate.EVOLVES, notes=(note,)),)
    assert not found.loses_state


def counted(grace: timedelta) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("sales", key=String("currency"), value=Int64("amount"))
    windows = TimeWindows.of_size_and_grace(MINUTE, grace)
    stream.group_by_key().windowed_by(windows).count("minutes").to_delta("out")
    return builder.build()


def hopping(kind: str) -> Topology:
    """Sums of hopping windows: final by columns, which are kept by slices, or by whole windows."""
    builder = StreamsBuilder()
    stream = builder.stream("sales", key=String("currency"), value=Int64("amount"))
    windows = TimeWindows.of_size_and_grace(MINUTE, MINUTE).advance_by(MINUTE / 4)
    grouped = stream.group_by_key().windowed_by(windows)
    if kind == "function":
        table = grouped.reduce("sums", lambda one, other: one + other)
    else:
        ordered = {"first": First("amount")} if kind == "ordered" else {}
        table = grouped.agg("sums", amount=Sum("amount"), **ordered)
    table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("out")
    return builder.build()


def by_whole_windows(before: CommitRecord) -> CommitRecord:
    """The commit as Weir wrote it before there were slices."""
    assert before.topology is not None
    return replace(
        before,
        topology=replace(
            before.topology,
            identities={
                name: replace(identity, grouping=identity.grouping.removesuffix(", in slices"))
                for name, identity in (before.topology.identities or {}).items()
            },
        ),
    )


def test_a_store_of_whole_windows_goes_on_by_slices_and_back_if_columns_are_aggregated():
    sliced, ordered, function = map(hopping, ("sliced", "ordered", "function"))
    older = by_whole_windows(committed(sliced))
    assert older != committed(sliced)
    assert compare(older, sliced, {0: 1}).of(Fate.GOES_ON) == ("sums",)
    assert change(ordered, sliced).of(Fate.EVOLVES) == ("sums",)
    assert change(sliced, ordered).of(Fate.EVOLVES) == ("sums",)
    assert change(function, sliced).of(Fate.GOES_ON) == ("sums",)


def test_a_function_cannot_go_on_with_slices():
    """It could not merge them; neither can a Weir that does not know them."""
    sliced, function = map(hopping, ("sliced", "function"))
    found = change(sliced, function)
    assert found.of(Fate.IS_REBUILT) == ("sums",)
    assert "advance_ms=15000), in slices and are now by TimeWindows(" in found.loss()


def test_a_changed_grace_of_windows_is_shown_unless_the_commit_is_older_than_that_setting():
    found = change(counted(MINUTE), counted(2 * MINUTE))
    assert found.of(Fate.GOES_ON) == ("minutes",)
    assert found.settings == (SettingChange(store="minutes", setting="grace", before="0:01:00", now="0:02:00"),)
    older = committed(counted(MINUTE))
    older = replace(older, topology=replace(older.topology, settings={}, identities=None))
    assert compare(older, counted(2 * MINUTE), {0: 1}).settings == ()


HELD = "may reach no output until another record updates"
FINAL, SHORT = (
    Suppressed.until_window_closes(BufferConfig.unbounded()),
    Suppressed.until_time_limit(MINUTE, BufferConfig.unbounded()).with_name("held"),
)


def suppressed(*suppressions: Suppressed) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("sales", key=String("currency"), value=Int64("amount"))
    table = stream.group_by_key().windowed_by(TimeWindows.of_size_and_grace(MINUTE, MINUTE)).count("minutes")
    for each in suppressions:
        table = table.suppress(each)
    table.to_delta("out")
    return builder.build()


@pytest.mark.parametrize(
    ("before", "now", "noted"),
    [
        ([FINAL], [], {"minutes": Fate.GOES_ON}),
        ([SHORT], [], {"held-store": Fate.IS_KEPT_ASIDE}),
        ([], [FINAL], {}),
        ([FINAL], [FINAL], {}),
        ([SHORT], [SHORT], {}),
    ],
)
def test_what_a_suppression_that_is_taken_out_still_held_is_noted_at_its_store(
    before: Sequence[Suppressed], now: Sequence[Suppressed], noted: dict[str, Fate]
):
    found = change(suppressed(*before), suppressed(*now))
    assert {each.store: each.fate for each in found.stores if HELD in " ".join(each.notes)} == noted
    assert found.settings == ()


def test_a_store_is_kept_aside_since_the_epoch_of_its_last_commit_whatever_comes_after():
    topology, without = held().build(), kept(timedelta(hours=1))
    first = change(topology, without)
    (aside,) = (each for each in first.stores if each.fate is Fate.IS_KEPT_ASIDE)
    assert aside.notes == ()
    later = replace(
        committed(without),
        epoch=9,
        topology=replace(without.committed_form, aside={aside.store: first.aside["waiting"]}),
    )
    (aside,) = (each for each in compare(later, without, {0: 1}).stores if each.fate is Fate.IS_KEPT_ASIDE)
    assert aside.notes == ("since epoch 7",)


def test_programs_that_share_no_store_topic_or_output_are_unrelated():
    def reading(topic: str, store: str, output: str) -> Topology:
        builder = StreamsBuilder()
        builder.table(topic, key=String("k"), value=Int64("v"), store=store).to_delta(output)
        return builder.build()

    record = committed(reading("a", "b", "c"))
    read = {name: replace(task, positions={"a": {0: 5}}) for name, task in record.tasks.items()}
    mine = replace(record, tasks=read)
    assert compare(mine, reading("x", "y", "z"), {0: 1}).is_unrelated
    for same in (("a", "y", "z"), ("x", "b", "z"), ("x", "y", "c")):
        assert not compare(mine, reading(*same), {0: 1}).is_unrelated
