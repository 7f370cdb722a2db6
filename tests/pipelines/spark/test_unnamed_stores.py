"""Stores of operators without a name go on with their rows wherever the operators are in the program."""

from __future__ import annotations

import pytest

from tests.pipelines.spark.inline import Place
from tests.pipelines.spark.unnamed import Held, Program, pieces, released, topics, written

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
    "the other order, and operators before": Program((RIGHT, LEFT), filters=1),
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


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "the same"])
def test_there_and_back_again(place, name):
    place.run()
    for turn, program in enumerate((CHANGES[name], Program((LEFT, RIGHT)), CHANGES[name])):
        place.application = program.application()
        more(place, 21 + 3 * turn)
        place.run()
        for topic in ("left", "right"):
            assert written(place, f"{topic}_out") == released(place.topics.rows[topic, 0], 1)
