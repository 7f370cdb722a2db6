"""Which topic partitions may fetch, against a list of those that were used last."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from weir.infra.kafka.fetching import Fetching


class Partition:
    """Fetches until it is told to stop."""

    def __init__(self, fetching: Fetching) -> None:
        self.fetching = fetching

    def stop(self) -> None:
        assert self in self.fetching
        self.fetching.remove(self)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["add", "add few", "work", "remove"]))))
def test_those_that_were_used_last_fetch(steps):
    fetching = Fetching()
    partitions = [Partition(fetching) for _ in range(6)]
    last: list[int] = []
    for number, step in steps:
        partition = partitions[number]
        if step == "work":
            with fetching.work(partition):
                pass
            last = [*(each for each in last if each != number), number] if number in last else last
        elif step == "remove":
            fetching.remove(partition)
            last = [each for each in last if each != number]
        else:
            most = 3 if step == "add" else 1
            fetching.add(partition, most)
            last = [*(each for each in last if each != number), number][-most:]
        assert [each in fetching for each in partitions] == [each in last for each in range(6)]


def test_no_partition_has_to_stop_while_it_is_used():
    fetching = Fetching()
    used, idle, new = (Partition(fetching) for _ in range(3))
    fetching.add(used, 2)
    fetching.add(idle, 2)
    with ExitStack() as stack:
        stack.enter_context(fetching.work(used))
        fetching.add(idle, 2)  # used last now
        fetching.add(new, 2)
        assert [each in fetching for each in (used, idle, new)] == [True, False, True]
        fetching.add(idle, 1)
        assert [each in fetching for each in (used, idle, new)] == [True, True, False], "one too many"
    fetching.add(new, 1)
    assert [each in fetching for each in (used, idle, new)] == [False, False, True]
