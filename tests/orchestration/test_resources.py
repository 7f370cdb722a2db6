"""Settings that come through Dagster: typed, the same for the driver, and never exposed."""

import os

import dagster as dg
import pytest
from pydantic import ValidationError

from weir.infra.settings import Settings
from weir.orchestration.resources import WeirResource


def test_the_resource_wins_over_variables_and_reaches_the_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_SLOTS", "2")
    monkeypatch.setenv("WEIR_MAX_EPOCH_RECORDS", "77")
    resource = WeirResource(dir=str(tmp_path), bootstrap_servers="one:9092", slots=5)
    for name, value in resource.environment().items():
        monkeypatch.setenv(name, value)
    settings = Settings.load(tmp_path)
    assert settings == resource.settings()
    assert (settings.bootstrap_servers, settings.slots, settings.max_epoch_records) == ("one:9092", 5, 77)
    assert "WEIR_CONTROL_URL" not in resource.environment()


def test_a_setting_of_the_wrong_kind_is_refused_at_once():
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        WeirResource(slots=0)


def test_a_url_with_a_password_is_a_variable_to_dagster_and_a_value_to_the_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOP_CONTROL_URL", "postgresql://weir:not-to-be-seen@host/weir")
    resource = WeirResource(dir=str(tmp_path), control_url=dg.EnvVar("SHOP_CONTROL_URL"))
    assert "not-to-be-seen" not in repr(resource)
    with dg.build_resources({"weir": resource}) as resources:
        assert resources.weir.settings().control_database_url.endswith("not-to-be-seen@host/weir")
        assert "not-to-be-seen" not in repr(resources.weir.settings())


def test_what_a_process_of_dagster_writes_is_closed_as_the_settings_say(tmp_path, monkeypatch):
    before = os.umask(0o022)
    try:
        monkeypatch.setenv("WEIR_UMASK", "007")
        WeirResource(dir=str(tmp_path)).settings()
        assert os.umask(before) == 0o007
    finally:
        os.umask(before)
