"""Which committed store a store with a made-up name is, by what it is made from."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from polars import col

from tests.pipelines.spark.unnamed import Held, Looked, Priced, Program
from weir import Application, BufferConfig, Int64, StreamsBuilder, String, Suppressed, TimeWindows
from weir.pipelines.topology.changes import Fate, compare
from weir.pipelines.topology.lineage import Lineages
from weir.pipelines.topology.naming import names_over
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.types import StateId

A, B = Held("a", "a_out"), Held("b", "b_out")
ONE = dict.fromkeys(range(9), 1)


def committed(application: Application, before: CommitRecord | None = None) -> CommitRecord:
    """A commit of the program, over one before."""
    topology = application.over(before).topology
    form = topology.committed_form
    if before is not None:
        form = replace(form, aside=compare(before, topology, ONE).aside)
    return CommitRecord(
        kind="commit",
        generation=1,
        epoch=before.epoch + 1 if before else 1,
        at_ms=0,
        fingerprint=topology.fingerprint,
        topology=form,
        tasks={
            f"{each.stored_name}_0": TaskCommit(
                state=StateId(1, 1), instance="i", positions={source.topic: {0: 1} for source in each.sources}
            )
            for each in topology.sub_topologies
        },
    )


def older(record: CommitRecord) -> CommitRecord:
    """As a version of Weir wrote it that did not know lineages."""
    identities = {name: replace(each, lineage=None) for name, each in record.topology.identities.items()}
    return replace(record, topology=replace(record.topology, identities=identities, edges=None))


def homes(record: CommitRecord) -> dict[str, str]:
    """Of each suppression's store, by its committed name, the topic of its sub-topology."""
    return {
        store: home for home, stores in record.topology.stores.items() for store in stores if store.startswith("KTABLE")
    }


def fates(before: CommitRecord, program: Program) -> dict[Fate, list[str]]:
    change = compare(before, program.application().over(before).topology, ONE)
    found: dict[Fate, list[str]] = {}
    for each in change.stores:
        found.setdefault(each.fate, []).append(each.store)
    return found


def losses(before: CommitRecord, program: Program) -> str:
    return compare(before, program.application().over(before).topology, ONE).loss()


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        Program((A, B), filters=2),
        Program((B, A)),
        Program((B, A), beside=1),
        Program((Held("c", "c_out"), B, A)),
        Program((B,)),
        Program((Held("c", "c_out"), A), beside=2),
    ],
)
def test_a_store_keeps_its_committed_name_and_its_rows_in_any_order(program, is_old):
    before = committed(Program((A, B)).application())
    if is_old:
        before = older(before)
    known = homes(before)
    after = committed(program.application(), before)
    kept = {each.topic for each in program.operators} & {"a", "b"}
    assert {store: home for store, home in homes(after).items() if home in kept} == {
        store: home for store, home in known.items() if home in kept
    }
    others = {store for store, home in homes(after).items() if home not in kept}
    assert not others & known.keys(), "another store has no name that a commit knows"
    assert after.topology.aside.keys() - {f"of_{topic}" for topic in "ab"} == {
        store for store, home in known.items() if home not in kept
    }


def test_stores_that_only_their_expressions_or_outputs_tell_apart_are_told_apart():
    def program(*operators: Held, **more: int) -> Application:
        return Program(operators, **more).application()

    first, second, third = (Held("a", f"out_{n}", hours=n, at_least=n) for n in (1, 2, 3))
    before = committed(program(first, second, third))
    by_output = {
        each.lineage.outputs: name for name, each in before.topology.identities.items() if each.lineage is not None
    }
    for order in ((third, first, second), (second, third), (replace(third, hours=9), second, first)):
        after = committed(program(*order, filters=1), before)
        for name, each in after.topology.identities.items():
            if each.lineage is not None:
                assert by_output[each.lineage.outputs] == name


def test_another_output_of_the_same_rows_keeps_the_store():
    before = committed(Program((A, B)).application())
    moved = Program((replace(B, output="b_moved"), A), filters=1)
    assert fates(before, moved)[Fate.GOES_ON] == ["of_b", *homes_of(before, "b"), "of_a", *homes_of(before, "a")]


def homes_of(record: CommitRecord, topic: str) -> list[str]:
    return [store for store, home in homes(record).items() if home == topic]


def test_a_store_that_comes_back_is_found_among_those_kept_aside():
    before = committed(Program((A, B)).application())
    (of_a,) = homes_of(before, "a")
    without = committed(Program((B,)).application(), before)
    assert of_a in without.topology.aside
    back = Program((B, A), filters=1)
    assert fates(without, back)[Fate.COMES_BACK] == ["of_a", of_a]
    assert losses(without, back) == ""


def test_another_suppression_beside_one_that_is_kept_aside_begins_empty_under_a_name_of_its_own():
    before = committed(Program((A,)).application())
    without = committed(Program((replace(A, topic="c", output="c_out", name="c"),)).application(), before)
    other = Program((replace(A, topic="c", output="c_out", name="c"), B))
    (new,) = [name for name in fates(without, other)[Fate.BEGINS_EMPTY] if name.startswith("KTABLE")]
    assert new not in without.topology.aside
    assert losses(without, other) == ""


TWINS = (Held("a", "x", hours=1), Held("a", "y", hours=1))


def test_a_store_of_which_it_is_not_clear_which_it_is_is_refused_and_each_way_out_works():
    before = committed(Program(TWINS).application())
    first, second = homes_of(before, "a")
    replaced = Program((Held("a", "z", hours=1),), filters=1)
    assert "cannot be told whether it is" in losses(before, replaced)
    for store in (first, second):
        assert f"'{store}'" in losses(before, replaced)
        named = Program((Held("a", "z", hours=1, name=store),), filters=1)
        assert losses(before, named) == ""
        assert store in fates(before, named)[Fate.GOES_ON]
    assert f".with_name('{first}')" in losses(before, replaced)


def test_stores_whose_outputs_say_one_thing_and_whose_expressions_another_are_refused():
    low, high = Held("a", "x", at_least=1), Held("a", "y", at_least=9)
    before = committed(Program((low, high)).application())
    crossed = Program((replace(low, output="y"), replace(high, output="x")))
    assert fates(before, crossed)[Fate.GOES_ON] == ["of_a"]
    for store in homes_of(before, "a"):
        assert store in losses(before, crossed)
    first, second = homes_of(before, "a")
    named = Program((replace(low, output="y", name=first), replace(high, output="x", name=second)))
    assert losses(before, named) == ""
    assert fates(before, named)[Fate.GOES_ON] == ["of_a", first, second]


def test_rows_of_older_versions_leave_twins_to_the_program_that_wrote_them():
    before = older(committed(Program(TWINS).application()))
    assert names_over(Program(TWINS).application().topology, before) == {}
    changed = Program(TWINS, filters=1)
    assert losses(before, changed)
    now = committed(Program(TWINS).application(), before)
    assert losses(now, changed) == ""
    assert committed(changed.application(), now).topology.stores == now.topology.stores


def test_an_unrelated_store_of_the_same_shape_is_never_taken_over():
    before = committed(Program((A,)).application())
    for record in (before, older(before)):
        (held,) = homes_of(before, "a")
        other = Program((B,))
        assert held in losses(record, other)
        assert held not in fates(record, other).get(Fate.GOES_ON, [])


PRICED = Priced("orders", "prices", "priced")


@pytest.mark.parametrize("is_old", [False, True])
def test_joins_by_foreign_key_keep_their_stores_and_edges(is_old):
    other = Priced("orders", "discounts", "discounted")
    before = committed(Program((PRICED, other)).application())
    if is_old:
        before = older(before)
    changed = Program((other, PRICED), filters=1).application().over(before).topology
    change = compare(before, changed, ONE)
    assert change.loss() == ""
    assert {each.fate for each in change.stores} == {Fate.GOES_ON}
    if is_old:
        return
    was = Program((PRICED, other)).application().topology
    assert {name: each.origin for name, each in changed.made_up_edges.items()} == {
        name: each.origin for name, each in was.made_up_edges.items()
    }
    assert changed.describe() == Program((other, PRICED), filters=1).application().topology.describe()


def test_a_join_by_foreign_key_that_takes_its_committed_name_has_both_its_stores():
    before = committed(Program((PRICED,)).application())
    moved = Program((replace(PRICED, output="z", prices="others"),))
    text = losses(before, moved)
    assert text
    given = text.partition("store='")[2].partition("'")[0]
    named = Program((replace(PRICED, store=given, output="z"),), filters=2)
    assert losses(before, named) == ""
    assert [name for name in fates(before, named)[Fate.GOES_ON] if name.startswith("KTABLE")] == list(
        name for name in before.topology.identities if name.startswith("KTABLE")
    )


def test_a_repartition_of_a_stream_without_a_name_keeps_its_sub_topologys_name():
    looked = Looked("orders", "prices", "looked")
    before = committed(Program((looked, Looked("orders2", "prices2", "looked2"))).application())
    changed = Program((Looked("orders2", "prices2", "looked2"), looked), filters=1)
    after = committed(changed.application(), before)
    assert after.topology.stores == before.topology.stores
    assert set(after.tasks) == set(before.tasks)


def test_a_program_that_gives_the_name_that_another_operator_would_get_has_two_stores():
    first = Program((A,)).application().topology
    (name,) = (name for node in first.nodes for name in node.made_up_names)
    both = Program((A, replace(B, name=name))).application().topology
    assert sorted(name for each in both.sub_topologies for name in each.identities if "SUPPRESS" in name) == [
        name,
        f"{name}-2",
    ]


def test_lineages_that_earlier_versions_have_committed_stay_as_they_are():
    """The digest was made before suppressions could restart their wait."""
    builder = StreamsBuilder()
    events = builder.stream("events", key=String("user"), value=Int64("n")).map_values(n=col("n") + 1)
    table = events.to_table("t").filter(col("n") > 3).map_values(m="n")

    def steps(**options):
        limit = Suppressed.until_time_limit(timedelta(hours=1), BufferConfig.max_records(7), **options)
        node = table.suppress(limit)._node
        return Lineages().of(node).steps

    assert steps() == "06a6c31d8c7fd33f"
    assert steps(restart_on_update=True) != steps()


def final_results(*topics: str, filters: int = 0, at_least: int = 0, output: str = "", store: str = "") -> Application:
    """Each page's final counts joined with the page's clicks, for each of ``topics``; ``store`` names where they are
    kept."""
    builder = StreamsBuilder()
    first = builder.stream("first", key=String("user"), value=Int64("n"))
    for _ in range(filters):
        first = first.filter(col("n") > 0)
    first.to_delta("first_out")
    for topic in topics:
        clicks = builder.stream(topic, key=String("page"), value=Int64("n"))
        days = clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(days=1)))
        final = days.count(f"{topic}_by_day").suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        if at_least:
            final = final.filter(col("count") >= at_least)
        moved = final.to_stream()
        moved.join(moved.to_table(store) if store else final).to_delta(output or f"{topic}_out")
    return Application("shop", builder)


def kept_by(record: CommitRecord) -> dict[str, str]:
    """Of each store of final results, by its committed name, the topic of its sub-topology."""
    return {
        store: home
        for home, stores in record.topology.stores.items()
        for store in stores
        if store.startswith("KSTREAM-TOTABLE-STATE-STORE-")
    }


@pytest.mark.parametrize("changed", [final_results("a", "b", filters=2), final_results("b", "a", filters=1)])
def test_final_results_that_joins_look_up_keep_their_rows_whatever_comes_before_them(changed):
    before = committed(final_results("a", "b"))
    assert len(kept_by(before)) == 2
    assert kept_by(committed(changed, before)) == kept_by(before)
    change = compare(before, changed.over(before).topology, ONE)
    assert change.loss() == ""
    assert {each.fate for each in change.stores} == {Fate.GOES_ON}


def test_final_results_of_which_it_is_not_clear_which_they_are_are_refused_and_the_way_out_works():
    before = committed(final_results("a"))
    (kept,) = kept_by(before)
    other = {"filters": 1, "at_least": 2, "output": "other"}
    loss = compare(before, final_results("a", **other).over(before).topology, ONE).loss()
    assert f"if it is '{kept}', keep the final results so: .to_stream().to_table('{kept}'), and join or group" in loss
    named = compare(before, final_results("a", **other, store=kept).over(before).topology, ONE)
    assert named.loss() == ""
    assert {each.fate for each in named.stores} == {Fate.GOES_ON}
