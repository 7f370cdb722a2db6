"""The files of docs/dagster.md are loaded by Dagster, and its command runs the application from any folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

import dagster as dg
import pytest
import yaml
from confluent_kafka import Producer
from dagster._core.code_pointer import load_python_file  # has no public name
from dagster.components.testing import create_defs_folder_sandbox

from weir import read_table
from weir.dagster import OnLag, Thresholds, WeirApplication, WeirResource
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.pipelines.operations.registry import registered_application

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "dagster.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
SHOP, DEFS, SEVERAL = (block for kind, block in BLOCKS if kind == "python")
WORKSPACE, COMPONENT = (block for kind, block in BLOCKS if kind == "yaml")
MATERIALIZE, SCAFFOLD = (block for kind, block in BLOCKS if kind == "")
START_LIMIT_S = 240.0


@pytest.fixture
def jobs(tmp_path, monkeypatch) -> Path:
    """A folder with the two files, which is not the current one and in which Python does not look."""
    folder = tmp_path / "my_jobs"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "defs.py").write_text(DEFS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    yield folder
    for name in ("shop", "defs"):
        sys.modules.pop(name, None)


def ingests(defs: dg.Definitions) -> set[str]:
    keys = defs.resolve_asset_graph().get_all_asset_keys()
    return {key.to_user_string() for key in keys if key.path[-1] == "ingest"}


def test_both_ways_to_write_defs_load(jobs):
    assert ingests(load_python_file(str(jobs / "defs.py"), str(jobs)).defs) == {"shop/ingest"}
    del sys.modules["defs"]
    (jobs / "defs.py").write_text(SEVERAL)
    both = load_python_file(str(jobs / "defs.py"), str(jobs)).defs
    assert ingests(both) == {"shop/ingest", "weather/ingest"}
    assert both.resources["weir"] == WeirResource(slots=2)


def test_the_workspace_names_a_file_and_its_folder(jobs):
    (location,) = yaml.safe_load(WORKSPACE)["load_from"]
    place, root = location["python_file"], jobs.parent
    loaded = load_python_file(str(root / place["relative_path"]), str(root / place["working_directory"]))
    assert ingests(loaded.defs) == {"shop/ingest"}


def test_the_component_of_the_page_loads_with_each_attribute():
    assert set(WeirApplication.get_model_cls().model_fields) == set(yaml.safe_load(COMPONENT)["attributes"])
    with create_defs_folder_sandbox() as project:
        package = project.project_root / "src" / "my_jobs"
        package.mkdir()
        (package / "shop.py").write_text(SHOP)
        _, _, _, type_, name, option, program = SCAFFOLD.split()
        assert option == "--program"
        path = project.scaffold_component(WeirApplication, name, scaffold_params={"program": program})
        assert (path / "defs.yaml").read_text().startswith(f"type: {type_}\n")
        with project.load_component_and_build_defs(path) as (_, defs):
            assert ingests(defs) == {"shop/ingest"}
    with create_defs_folder_sandbox() as project:
        package = project.project_root / "src" / "my_jobs"
        package.mkdir()
        (package / "shop.py").write_text(SHOP)
        path = project.defs_folder_path / "shop"
        path.mkdir()
        (path / "defs.yaml").write_text(COMPONENT)
        with project.load_component_and_build_defs(path) as (component, defs):
            made = component.supervised
            assert made.topics == {"orders": dg.AssetKey(["website", "orders"])}
            assert made.thresholds == Thresholds(lag_max_records=50_000)
            assert made.on_lag == OnLag(actions=["restore", "commits"])
            assert (made.first_day, made.end_day) == (date(2026, 1, 1), date(2027, 1, 1))
            assert (list(made.owners), list(made.unwatched)) == (["team:shop"], ["nightly_compaction"])
            assert defs.resources["weir"] == WeirResource(slots=2)


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_the_ingest_is_materialized_from_a_folder_that_is_not_its_own(jobs, tmp_path):
    settings, home = Settings(dir=tmp_path / ".weir"), tmp_path / "home"
    home.mkdir()
    with broker_for(settings) as (bootstrap_servers, of_broker):
        KafkaAdmin(bootstrap_servers, of_broker.kafka).create_topic("orders", 2)
        producer = Producer({**of_broker.kafka, "bootstrap.servers": bootstrap_servers})
        for customer, item in (("ann", "tea"), ("bob", "tea"), ("ann", "cake")):
            producer.produce("orders", item, customer)
        assert producer.flush(30) == 0
        del producer  # it would look for the broker that ends below
        command = shlex.split(MATERIALIZE.replace("defs.py", str(jobs / "defs.py")))
        options = ["-d", str(jobs), "--config-json", json.dumps({"execution": {"config": {"in_process": {}}}})]
        done = subprocess.run(  # in one process, which takes less time
            [sys.executable, "-m", *command, *options],
            env={**os.environ, "DAGSTER_HOME": str(home), "WEIR_DIR": str(settings.dir), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_table(settings.warehouse / "shop" / "customer_orders").sort("customer")
    assert rows.select("customer", "orders").rows() == [("ann", 2), ("bob", 1)]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        names = ("ingest", "customer_orders", "changelog/by_customer", "dead_letters")
        assert {dg.AssetKey(["shop", *name.split("/")]) for name in names} <= {*instance.all_asset_keys()}
    assert str(jobs) in (settings.dir / "applications" / "shop.json").read_text()
    assert registered_application(settings, "shop").id == "shop"
