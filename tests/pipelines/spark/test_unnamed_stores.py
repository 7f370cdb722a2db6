"""Stores of operators without a name go on with their rows wherever the operators are in the program."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.pipelines.backfill.inline import begun_whole, run_on, run_shadow
from tests.pipelines.spark.inline import Place
from tests.pipelines.spark.unnamed import Held, Program, pieces, released, topics, written
from weir import QueryError, StateReader
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.cli.app import app
from weir.pipelines.migrate.kafka_streams_return import KafkaStreamsReturn
from weir.pipelines.operations import plan
from weir.pipelines.spark.admission import admit
from weir.pipelines.spark.errors import ProgramReplacedError, TopologyChangedError
from weir.pipelines.topology import SubTopology, Topology
from weir.pipelines.topology.changes import compare
from weir.state.commit.protocol import newest_commit
from weir.state.errors import SwapRefusedError

LEFT, RIGHT = Held("left", "left_out"), Held("right", "right_out")


@pytest.fixture
def place(tmp_path):
    return Place(Program((LEFT, RIGHT)).application(), topics(), tmp_path)


def more(place: Place, first: int, count: int = 3) -> None:
    place.topics.rows["left", 0] += pieces(first, count, "l-")
    place.topics.rows["right", 0] += pieces(first, count, "r-")


CHANGES = {
    "the same": Program((LEFT, RIGHT)),
    "operators before": Program((LEFT, RIGHT), filters=3),
    "operators between": Program((LEFT, RIGHT), beside=2),
    "the other order": Program((RIGHT, LEFT)),
    "the other order, operators before": Program((RIGHT, LEFT), filters=1),
}


@pytest.mark.parametrize("loses_disk", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_held_back_stays_with_its_operator(place, name, loses_disk):
    place.run()
    place.application = CHANGES[name].application()
    more(place, 21)
    if loses_disk:
        for data in place.state_folder.glob("*/*/data.mdb"):
            data.unlink()
    place.run()
    for topic in ("left", "right"):
        assert written(place, f"{topic}_out") == released(place.topics.rows[topic, 0], 1)


@pytest.mark.parametrize("loses_disk", [False, True])
@pytest.mark.parametrize("named", ["", "held"])
def test_what_is_held_goes_on_when_updates_begin_to_restart_the_wait_and_cease_to(tmp_path, named, loses_disk):
    """What is held keeps its place until its next update. Items come back after seventy minutes."""
    plain, restarting = (Held("left", "left_out", 2, name=named, restarts=each) for each in (False, True))
    place = Place(Program((plain,)).application(), topics(), tmp_path)
    place.run()
    for turn, each in enumerate((restarting, plain)):
        place.application = Program((each,), filters=turn).application()
        more(place, 21 + 8 * turn, 8)
        if loses_disk:
            for data in place.state_folder.glob("*/*/data.mdb"):
                data.unlink()
        place.run()
    expected = released(place.topics.rows["left", 0], 2, restarts_from=20, restarts_to=28)
    assert written(place, "left_out") == expected
    assert expected != released(place.topics.rows["left", 0], 2)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "the same"])
def test_there_and_back_again(place, name):
    place.run()
    for turn, program in enumerate((CHANGES[name], Program((LEFT, RIGHT)), CHANGES[name])):
        place.application = program.application()
        more(place, 21 + 3 * turn)
        place.run()
        for topic in ("left", "right"):
            assert written(place, f"{topic}_out") == released(place.topics.rows[topic, 0], 1)


STEPS = ["pivot appended", "table appended", "settled", "rolled back", "undo dropped", "files written", "state written"]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_the_first_run_in_another_order_loses_nothing(place, step):
    place.run()
    place.application = Program((RIGHT, Held("right", "more", hours=2), LEFT), filters=1).application()
    more(place, 21, 12)
    left = [2]

    def crash(found):
        left[0] -= found == step
        if found == step and left[0] == 0:
            raise KeyboardInterrupt(step)

    try:
        place.run(on_step=crash)
    except (KeyboardInterrupt, Exception):
        assert left[0] <= 0
    place.run()
    for topic in ("left", "right"):
        assert written(place, f"{topic}_out") == released(place.topics.rows[topic, 0], 1)


def test_a_store_kept_aside_comes_back_after_its_number_went_to_another(place):
    place.run()
    before = newest_commit(place.warehouse, "shop").topology
    held = len(place.topics.rows["left", 0])
    place.application = Program((RIGHT,)).application()
    more(place, 21)
    place.run()
    (of_left,) = newest_commit(place.warehouse, "shop").topology.aside.keys() - {"of_left"}
    assert of_left in before.stores["left"]
    assert written(place, "right_out") == released(place.topics.rows["right", 0], 1)
    place.application = Program((Held("right", "more", hours=2), RIGHT, LEFT), filters=1).application()
    more(place, 24)
    place.run()
    assert not newest_commit(place.warehouse, "shop").topology.aside
    # Without positions in the commit, the topic is read again from its start.
    assert {key for key, _ in written(place, "left_out")} == {f"l-item-{number}" for number in range(7)}
    assert held < len(place.topics.rows["left", 0])
    assert written(place, "right_out") == released(place.topics.rows["right", 0], 1)


def test_a_row_of_an_older_version_is_taken_over_and_gets_lineages_at_the_next_start(place, monkeypatch):
    made = SubTopology.identities.func

    def older(self):
        return {name: replace(each, lineage=None) for name, each in made(self).items()}

    with monkeypatch.context() as patched:
        patched.setattr(SubTopology, "identities", property(older))
        patched.setattr(Topology, "made_up_edges", property(lambda self: None))
        place.run()
    assert newest_commit(place.warehouse, "shop").topology.edges is None
    place.application = Program((RIGHT, LEFT), filters=2).application()
    assert place.run().commits >= 1, "the commit at the start has lineages"
    committed = newest_commit(place.warehouse, "shop").topology
    assert [each.lineage.origin for name, each in committed.identities.items() if each.lineage] == [
        "of_right",
        "of_left",
    ]
    more(place, 21)
    place.run()
    for topic in ("left", "right"):
        assert written(place, f"{topic}_out") == released(place.topics.rows[topic, 0], 1)


TWINS = (Held("left", "x"), Held("left", "y"))


def test_where_it_is_not_clear_which_store_is_which_the_start_is_refused_and_each_way_out_works(tmp_path):
    for name in range(2):
        place = Place(Program(TWINS).application(), topics(), tmp_path / str(name))
        place.run()
        place.application = Program((Held("left", "z"),), filters=1).application()
        with pytest.raises(TopologyChangedError, match="cannot be told whether") as refused:
            place.run()
        ways = re.findall(r"'(KTABLE-SUPPRESS-STATE-STORE-\d+)'", refused.value.loss.partition("whether it is")[2])
        assert f".with_name('{ways[0]}')" in str(refused.value)
        place.application = Program((Held("left", "z", name=ways[name]),), filters=1).application()
        more(place, 21)
        place.run()
        assert written(place, "x") + written(place, "z") != []
        assert sorted(written(place, "x") + written(place, "z")) == released(place.topics.rows["left", 0], 1)
    place = Place(Program(TWINS).application(), topics(), tmp_path / "loss")
    place.run()
    place.application = Program((Held("left", "z"),), filters=1).application()
    place.run(accept_state_loss=True)
    (kept,) = [
        name for name, each in newest_commit(place.warehouse, "shop").topology.identities.items() if each.lineage
    ]
    assert kept not in newest_commit(place.warehouse, "shop").topology.aside


def test_an_operator_that_was_named_and_one_that_loses_its_name_go_on_as_their_errors_say(place):
    place.run()
    place.application = Program((replace(LEFT, name="hourly"), RIGHT)).application()
    with pytest.raises(TopologyChangedError) as refused:
        place.run()
    (given,) = re.findall(r"with_name\('([^']*)'\)", str(refused.value))
    place.application = Program((replace(LEFT, name=given), RIGHT)).application()
    more(place, 21)
    place.run()
    place.application = Program((RIGHT, LEFT)).application()  # the name is left out again
    more(place, 24)
    place.run()
    for topic in ("left", "right"):
        assert written(place, f"{topic}_out") == released(place.topics.rows[topic, 0], 1)


def in_the_other_order(place: Place) -> tuple[str, str]:
    """Run the program, then the same in the other order; the committed names of the stores of left and right, each of
    which the new program has for the other."""
    place.run()
    stores = newest_commit(place.warehouse, "shop").topology.stores
    place.application = Program((RIGHT, LEFT)).application()
    more(place, 21)
    place.run()
    assert newest_commit(place.warehouse, "shop").topology.stores == stores
    (left,), (right,) = ([name for name in stores[topic] if name.startswith("KTABLE")] for topic in ("left", "right"))
    return left, right


def test_plans_and_queries_show_the_committed_names_and_understand_both(place):
    left, right = in_the_other_order(place)
    (place.folder / "root" / "state").mkdir(parents=True)
    (place.folder / "root" / "state" / "shop").symlink_to(place.state_folder)
    (place.folder / "root" / "warehouse").symlink_to(place.warehouse)
    reader = StateReader(place.folder / "root", place.application)
    for store, prefix in ((left, "l-"), (right, "r-")):
        rows = reader.range(store).rows
        assert {item[:2] for item in rows["item"]} == {prefix}
    place.application = Program((LEFT, RIGHT), filters=40).application()
    shown = {name for node in place.application.topology.nodes for name in node.made_up_names}
    committed = newest_commit(place.warehouse, "shop")
    change = compare(committed, place.application.over(committed).topology, dict.fromkeys(range(9), 1))
    assert {each.shown for each in change.stores} == {"", *shown}
    place.run()
    reader = StateReader(place.folder / "root", place.application)
    for name, store in zip(sorted(shown), (left, right), strict=True):
        assert reader.range(name).rows.equals(reader.range(store).rows)
    with pytest.raises(QueryError, match="has no store"):
        reader.range("KTABLE-SUPPRESS-STATE-STORE-0000000999")


def test_a_program_shows_kafka_streams_own_names_whatever_it_has_committed(place):
    left, right = in_the_other_order(place)
    program = place.application.over(newest_commit(place.warehouse, "shop"))
    assert program.topology.describe() == place.application.topology.describe()
    assert program.topology.fingerprint == place.application.topology.fingerprint
    assert (program.topology.shown(left), program.topology.shown(right)) == (right, left)
    returned = KafkaStreamsReturn(
        id="back", application=program, commit=None, app_folder=place.folder, cluster=None, reader=None, topic_counts={}
    )
    assert returned._topic(left) == f"back-{right}-changelog"


@pytest.mark.parametrize("swaps_before", [False, True])
def test_a_backfill_of_everything_takes_the_names_that_are_committed(place, swaps_before):
    if swaps_before:
        in_the_other_order(place)
    place.run()
    held = newest_commit(place.warehouse, "shop").topology.stores
    mended = Program((RIGHT, Held("left", "left_out", hours=2)), filters=1).application()
    shadow = run_shadow(place, begun_whole(place, mended), mended)
    more(place, 24)
    place.run()
    run_on(place, shadow, mended)
    swap_everything(place.warehouse, mended, shadow)
    place.application = mended
    more(place, 27)
    place.run()
    assert newest_commit(place.warehouse, "shop").topology.stores == held
    assert written(place, "right_out") == released(place.topics.rows["right", 0], 1)
    assert written(place, "left_out") == released(place.topics.rows["left", 0], 2)


def test_a_backfill_of_everything_is_not_swapped_in_over_stores_that_have_other_names_by_then(place):
    place.run()
    mended = Program((RIGHT, Held("left", "left_out"), Held("left", "new"))).application()
    shadow = run_shadow(place, begun_whole(place, mended), mended)
    (new,) = shadow_names(shadow) - {name for each in committed_stores(place) for name in each}
    place.application = Program((RIGHT, LEFT, Held("right", "other", name=new))).application()
    place.run()
    run_on(place, shadow, mended)
    with pytest.raises(SwapRefusedError, match="have other names now; run the backfill again"):
        swap_everything(place.warehouse, mended, shadow)
    again = run_shadow(place, begun_whole(place, mended), mended)
    swap_everything(place.warehouse, mended, again)
    place.application = mended
    more(place, 21)
    place.run()
    assert written(place, "new") == released(place.topics.rows["left", 0], 1)


def shadow_names(shadow) -> set[str]:
    return {name for each in newest_commit(shadow.warehouse, shadow.id).topology.stores.values() for name in each}


def committed_stores(place: Place) -> list[tuple[str, ...]]:
    return list(newest_commit(place.warehouse, "shop").topology.stores.values())


def test_another_program_that_commits_before_the_claim_makes_the_start_begin_again(place):
    place.run()
    committed = newest_commit(place.warehouse, "shop")
    other = Program((RIGHT, LEFT)).application()
    counts = place.topics.partition_counts()
    with pytest.raises(ProgramReplacedError, match="start it again"):
        admit(other, place.warehouse / "shop", committed, counts, False)
    assert admit(other.over(committed), place.warehouse / "shop", committed, counts, False) is not None


def test_the_plan_shows_both_names(place, monkeypatch):
    place.run()
    (left,) = [name for name in newest_commit(place.warehouse, "shop").topology.stores["left"] if "KTABLE" in name]
    moved = Program((LEFT, RIGHT), filters=40).application()
    monkeypatch.setattr(plan, "source_counts", lambda *_: place.topics.partition_counts())
    monkeypatch.setattr(plan, "KafkaAdmin", lambda *_: place.topics)
    monkeypatch.setattr(plan, "load_reference", lambda reference: moved)
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", "nobody:1")
    result = CliRunner().invoke(app, ["plan", "module:app", "--dir", str(place.folder)])
    shown = min(name for node in moved.topology.nodes for name in node.made_up_names)
    assert (result.exit_code, f"store {left} ({shown} in this program): continues" in result.stdout) == (0, True)
