"""The yardstick of promises in processor time."""

import pytest

from tests import yardstick


@pytest.mark.parametrize("slower", [1, 2, 7])
def test_a_slower_machine_changes_nothing(monkeypatch, slower):
    """Work that takes 4 ms where the yardstick takes its 10; each turn is disturbed by the one before it."""
    clock, turns = [0.0], []

    def takes(ms):
        turns.append(ms)
        clock[0] += slower * (ms + len(turns) % 5) / 1_000

    monkeypatch.setattr(yardstick.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(yardstick, "_plain_python", lambda: takes(10))
    assert yardstick.processor_ms(lambda: takes(4)) == pytest.approx(4)
    assert turns == [4, 10] * yardstick.TIMES
