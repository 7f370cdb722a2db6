"""The folder's registry names the program whose state is there, not one that was refused."""

from __future__ import annotations

import json

import pytest

from infra.settings import Settings
from pipelines.cli.drive import drive
from pipelines.spark import runner
from pipelines.spark.driver import Progress
from pipelines.spark.errors import TopologyChangedError

OLD, NEW = "pipelines.examples.flights:app", "tests.pipelines.cli.test_drive:app"


def __getattr__(name):
    """``app``: the flights under another reference."""
    if name == "app":
        from pipelines.examples.flights import app
        return app
    raise AttributeError(name)


@pytest.fixture
def driven(tmp_path, monkeypatch):
    """``driven(reference, refused)`` drives with a runner that only starts; gives the reference that is registered."""
    settings = Settings(dir=tmp_path, bootstrap_servers="nobody:1")

    def run(reference, refused):
        def start(*_, on_progress, **__):
            progress = Progress(application="flights", generation=0, epoch=0, committed_epoch=0, records_in=0, lag=0,
                                records_per_s=0.0, commit_ms=0.0, state="starting")
            on_progress(progress)
            if refused:
                raise TopologyChangedError("flights", "a store would be given up")
            on_progress(Progress(**{**vars(progress), "generation": 2}))

        monkeypatch.setattr(runner, "run", start)
        if refused:
            with pytest.raises(TopologyChangedError):
                drive(reference, settings, until_caught_up=True)
        else:
            drive(reference, settings, until_caught_up=True)
        return json.loads((tmp_path / "applications" / "flights.json").read_text())["reference"]

    return run


def test_a_refused_program_does_not_take_the_place_of_the_one_whose_state_is_there(driven):
    assert driven(OLD, refused=False) == OLD
    assert driven(NEW, refused=True) == OLD
    assert driven(NEW, refused=False) == NEW


def test_an_application_that_the_folder_does_not_know_is_registered_whatever_comes_of_it(driven):
    """Its log is found by that."""
    assert driven(NEW, refused=True) == NEW
