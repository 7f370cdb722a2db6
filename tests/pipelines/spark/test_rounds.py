"""Executors are looked at now and then, those apart that are busy, left alone or gone."""

from __future__ import annotations

from types import SimpleNamespace

from weir.infra.spark.executors import Executor
from weir.pipelines.spark import rounds
from weir.pipelines.spark.rounds import Rounds


def test_each_round_has_the_executors_that_may_be_visited(monkeypatch):
    now = SimpleNamespace(monotonic=lambda: now.s, s=100.0)
    monkeypatch.setattr(rounds, "time", now)
    slots = SimpleNamespace(
        executors=lambda: ["1", "2", "3"], executor_at=lambda id: None if id == "3" else Executor(id=id, host="a")
    )
    each = Rounds(slots, every_s=5.0)
    assert each.begins()
    assert not each.begins()
    assert [executor.id for executor in each.executors(but=["1"])] == ["2"], "the third has just gone"
    each.leave_alone("2", 12.0)
    found = []
    for now.s in (104.9, 105.0, 110.0, 115.0):
        found += [[executor.id for executor in each.executors(but=[])]] if each.begins() else []
    assert found == [["1"], ["1"], ["1", "2"]]
