"""A folder in which ``sales`` has run, as commands find it; the control database is fed by the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, sales
from weir.infra.settings import Settings
from weir.pipelines.operations.registry import register

PROGRAM = "from tests.pipelines.spark.sales import application\napp = application()\n"


class Installed(Place):
    """Its state is where a real run has it."""

    @property
    def state_folder(self) -> Path:
        return Settings(dir=self.folder).state_dir / "sales"


def sold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Where ``sales`` has run over 100 records in each of two partitions; its module is in ``folder``, the current
    one."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    module = f"sold_{re.sub(r'[^a-z]', '_', folder.name)}"
    (folder / f"{module}.py").write_text(PROGRAM)
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    place = Installed(application(), topics, folder / ".weir")
    register(Settings(dir=place.folder), "sales", f"{module}:app")
    place.run()
    return place
