"""Whatever the program: no row of a store is lost, doubled or changed when its topics get more partitions, and each is
in the task where the key's new records are.

The test tries the same few examples every time; ``ORDER_EXAMPLES`` sets how many others to draw instead.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.pipelines.order import building
from tests.pipelines.order.programs import data_for, is_fit, programs
from tests.pipelines.repartitioning.growing import close, dealt, misplaced, plan, require_changelogs, rows_held
from tests.pipelines.spark.inline import Place
from weir.pipelines.repartitioning.errors import MisplacedKeyError, OwnKeysError, StoresNotDealtError

EXAMPLES = int(os.environ.get("ORDER_EXAMPLES", "8"))


@st.composite
def growths(draw: st.DrawFn):
    """A program, and the same over more partitions, with records for each."""
    program, factor = draw(programs(most_topics=2, most_partitions=3, most_steps=6)), draw(st.sampled_from([2, 2, 3]))
    topics = tuple(
        (topic, count if topic in program.global_topics else count * factor) for topic, count in program.topics
    )
    grown = replace(program, topics=topics)
    assume(is_fit(grown) and not any(getattr(step, "is_in_memory", False) for step in program.steps))
    return program, grown, draw(data_for(program)), draw(data_for(grown))


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    derandomize="ORDER_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(growth=growths())
def test_rows_move_to_the_tasks_of_their_keys_and_stay_as_they_are(growth):
    program, grown, before, after = growth
    with tempfile.TemporaryDirectory() as folder:
        topics = building.topics(before, program.topics_with_headers)
        there = Place(building.application(program), topics, Path(folder), max_records=20)
        there.run()
        held = rows_held(there)
        more = building.topics(after, grown.topics_with_headers).rows
        there.topics.rows |= {name: [] for name in more if name not in there.topics.rows}
        try:
            plan(there)
            vouched: tuple[str, ...] = ()
        except OwnKeysError as error:
            vouched = error.stores
        except StoresNotDealtError:
            assume(False)
        try:
            dealt(there, keyed_by_record=vouched)
        except MisplacedKeyError:  # the program has processors behind a key that it has changed
            assert vouched
            assume(False)
        close()
        there.run()
        assert rows_held(there) == held
        assert misplaced(there) == []
        require_changelogs(there)
        for name, rows in more.items():
            there.topics.rows[name] += rows if name[0] not in program.global_topics else []
        there.run()
        require_changelogs(there)
        assert misplaced(there) == []
        close()
