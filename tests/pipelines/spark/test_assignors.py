"""Which assignor a run has, and what is said of one that is no good."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from weir.infra import environment
from weir.infra.settings import Settings, SettingsError
from weir.pipelines.assignment import (
    ExecutorState,
    HighAvailabilityAssignor,
    StickyAssignor,
    TaskAssignment,
    TaskInfo,
)
from weir.pipelines.spark.assignors import AssignorError, Assignors
from weir.state.types import TaskId

HERE = __name__
EXECUTORS = [ExecutorState(id=name, slots=1, rack=name) for name in ("1", "2")]
TASKS = [TaskInfo(id=TaskId(0, number), is_stateful=True) for number in range(4)]


class Own:
    """Everything on the first executor."""

    def assign(self, state):
        found = Assignors().assign(replace(state, executors={"1": state.executors["1"]}))
        return replace(found, executors={**found.executors, "2": replace(found.executors["1"], active=frozenset())})


class Forgets:
    def assign(self, state):
        return TaskAssignment(executors={})


class Fails:
    def assign(self, state):
        raise KeyError("zone")


class NeedsArguments:
    def __init__(self, zone: str) -> None: ...


NO_ASSIGNOR = SimpleNamespace


def of(name: str, **others: object) -> Assignors:
    return Assignors.of(
        Settings.load(overrides={"assignor": name, **{key: str(value) for key, value in others.items()}})
    )


@pytest.mark.parametrize(
    ("name", "kind", "spreads"),
    [
        ("high_availability", HighAvailabilityAssignor, False),
        ("rack_aware", HighAvailabilityAssignor, True),
        ("sticky", StickyAssignor, False),
        (f"{HERE}:Own", Own, False),
    ],
)
def test_an_assignor_is_named_by_a_setting(name, kind, spreads):
    found = of(name, standby_replicas=1, acceptable_recovery_lag=7, max_warmup_replicas=3, probing_interval_s=0.5)
    state = found.state(EXECUTORS, TASKS)
    assert (type(found.assignor), state.spreads_over_racks) == (kind, spreads)
    assert (state.standby_replicas, state.acceptable_recovery_lag, state.max_warmup_replicas) == (1, 7, 3)
    assert found.probing_interval_s == 0.5
    assert set(state.executors) == {"1", "2"}


def test_an_own_assignor_decides():
    found = of(f"{HERE}:Own")
    assert len(found.assign(found.state(EXECUTORS, TASKS)).executors["1"].active) == len(TASKS)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere:Own", "it cannot be made: ModuleNotFoundError: No module named 'nowhere'"),
        (f"{HERE}:Missing", "it cannot be made: AttributeError"),
        (f"{HERE}:NeedsArguments", "it cannot be made: TypeError"),
        (f"{HERE}:NO_ASSIGNOR", "it has no method assign(state)"),
    ],
)
def test_a_class_that_is_no_assignor_is_refused_and_another_one_or_a_corrected_one_is_taken(name, reason):
    with pytest.raises(AssignorError, match=re.escape(reason)) as refused:
        of(name)
    for instead in re.findall(r"\b(high_availability|rack_aware|sticky)\b", str(refused.value)):
        of(instead)
    assert isinstance(of(f"{HERE}:Own").assignor, Own)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Forgets", "MISSING_PROCESS_ID: executor '1' has no entry; the assignment is not carried out"),
        ("Fails", "it has failed with KeyError: 'zone'"),
    ],
)
def test_an_answer_that_cannot_be_carried_out_is_an_error(name, reason):
    found = of(f"{HERE}:{name}")
    with pytest.raises(AssignorError, match=re.escape(reason)):
        found.assign(found.state(EXECUTORS, TASKS))


def test_a_name_that_is_none_is_refused():
    with pytest.raises(
        SettingsError, match=r"write high_availability or rack_aware or sticky or package\.module:name of a class"
    ):
        of("fastest")


def test_a_host_says_its_rack_and_a_driver_there_does_not_take_it_for_a_setting(monkeypatch):
    monkeypatch.delenv("WEIR_RACK", raising=False)
    assert environment.rack_here() is None
    monkeypatch.setenv("WEIR_RACK", "zone-a")
    assert environment.rack_here() == "zone-a"
    Settings.load()
