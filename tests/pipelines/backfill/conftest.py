"""A live application and its complete backfill for each test, copied from the module's ``template``."""

from __future__ import annotations

import pytest

from tests.pipelines.backfill.inline import copied
from tests.pipelines.spark.inline import Place
from weir.pipelines.backfill.shadow import Shadow, shadows


@pytest.fixture
def place(template, tmp_path) -> Place:
    """The live application."""
    return copied(template, tmp_path)


@pytest.fixture
def shadow(place) -> Shadow:
    """The complete backfill."""
    [found] = shadows(place.warehouse, place.folder / "shadows", "sensors")
    return found
