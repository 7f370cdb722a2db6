"""Where tasks begin on a cluster: where their stores are, or where a standby is if nobody has them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.infra.spark.executors import Executor
from weir.pipelines.spark import placement
from weir.pipelines.spark.assignors import Assignors
from weir.pipelines.spark.placement import placed, slot_homes
from weir.state.types import TaskId

COSTS = st.one_of(st.none(), st.floats(0, 100))


@given(st.data())
def test_a_task_begins_where_its_stores_are_or_else_where_a_standby_is(data):
    """With the assignor that warms stores up before tasks move; one that is within the acceptable lag comes first."""
    there = [Executor(id=str(number), host="a") for number in range(data.draw(st.integers(1, 4)))]
    homes = slot_homes(there, data.draw(st.integers(len(there), 3 * len(there))))
    counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    tasks = [TaskId(index, partition) for index, count in enumerate(counts) for partition in range(count)]
    at = {task: data.draw(st.sampled_from([None, *there])) for task in tasks}
    lags = {
        task: data.draw(st.dictionaries(st.sampled_from(there), st.sampled_from([0, 5, 20_000]), max_size=2))
        for task in tasks
    }
    costs = {task: cost for task in tasks if (cost := data.draw(COSTS)) is not None}
    spec = SimpleNamespace(
        assignors=Assignors(),
        application=SimpleNamespace(
            topology=SimpleNamespace(sub_topology=lambda index: SimpleNamespace(stores=["store"]))
        ),
        tasks=tasks,
        costs=costs,
    )
    held = {
        executor: placement._Held(
            rack=None,
            tasks=frozenset(task for task in tasks if at[task] == executor),
            standbys={task: found[executor] for task, found in lags.items() if executor in found},
        )
        for executor in there
    }
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(placement, "_held", lambda *arguments: held)
        found = placed(None, None, spec, homes)
    assert found.slot_of.keys() == set(tasks)
    for task in tasks:
        home = homes[found.slot_of[task]]
        if (store := at[task]) is not None:
            assert home == store
        elif lags[task]:
            assert home in lags[task]
            assert lags[task][home] <= 10_000 or min(lags[task].values()) > 10_000
        assert set(found.standbys.get(task, ())) == {executor.id for executor in lags[task]}
