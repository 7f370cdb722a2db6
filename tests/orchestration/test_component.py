"""``weir.dagster.WeirApplication`` in the folder of a ``dg`` project: scaffolded, and loaded by Dagster."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import date

import dagster as dg
import pytest
from dagster.components.core.package_entry import discover_package_objects  # has no public name
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox  # what dg itself writes and loads

from weir.dagster import OnLag, Thresholds, WeirApplication, WeirResource, definitions, supervise
from weir.orchestration.supervised import FIRST_DAY
from weir.pipelines.application import load_application

TYPE = "weir.dagster.WeirApplication"
PROGRAM = """
from weir import Application, Count, StreamsBuilder, String
builder = StreamsBuilder()
builder.stream("clicks", key=String("user"), value=String("page")).group_by_key().agg("counts", n=Count())
app = Application("clicking", builder)
"""


@pytest.fixture
def project() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox
        for name in [name for name in sys.modules if name.startswith(sandbox.project_name)]:
            del sys.modules[name]


def write(project: DefsFolderSandbox, name: str, attributes: str = "", program: str = "clicking") -> None:
    folder = project.defs_folder_path / name
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM.replace("clicking", program))
    (folder / "defs.yaml").write_text(f"type: {TYPE}\nattributes:\n  program: .program:app\n{attributes}")


def names(defs: dg.Definitions) -> dict[str, set[str]]:
    repository = defs.get_repository_def()
    return {
        "assets": {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()},
        "checks": {str(key) for key in defs.resolve_asset_graph().asset_check_keys},
        "jobs": {job.name for job in repository.get_all_jobs()},
        "sensors": {each.name for each in repository.sensor_defs},
        "schedules": {each.name for each in repository.schedule_defs},
        "resources": {str(key) for key in defs.resources or ()},
    }


def test_what_is_scaffolded_loads_and_is_what_definitions_gives(project):
    path = project.scaffold_component(WeirApplication, "orders")
    assert (path / "defs.yaml").read_text() == f"type: {TYPE}\n\nattributes:\n  program: .program:app\n"
    with project.load_component_and_build_defs(path) as (component, defs):
        assert component.program == f"{project.project_name}.defs.orders.program:app"
        module, _ = component.program.split(":")
        assert names(defs) == names(definitions(supervise(sys.modules[module].app, component.program)))
        assert component.supervised.id == "orders"
        assert str(project.project_root / "src") in component.supervised.import_from


def test_a_program_of_ones_own_is_scaffolded_by_its_name(project):
    path = project.scaffold_component(
        WeirApplication, "flights", scaffold_params={"program": "weir.pipelines.examples.flights:app"}
    )
    assert [each.name for each in path.iterdir()] == ["defs.yaml"]
    with project.load_component_and_build_defs(path) as (component, _):
        assert component.supervised.reference == "weir.pipelines.examples.flights:app"


def test_attributes_left_out_are_the_defaults_of_supervise(project):
    write(project, "clicking")
    with project.load_component_and_build_defs(project.defs_folder_path / "clicking") as (component, _):
        made = component.supervised
        assert (made.thresholds, made.on_lag) == (Thresholds(), OnLag())
        assert (made.first_day, made.end_day) == (FIRST_DAY, None)
        assert (list(made.owners), list(made.unwatched), component.weir) == ([], [], {})


MADE = """
import dagster as dg
from weir.dagster import WeirApplication

@dg.component_instance
def load(context):
    return WeirApplication(program="weir.pipelines.examples.flights:app")
"""


def test_one_that_python_makes_without_saying_its_type_has_all_that_looks_after_it(project):
    folder = project.defs_folder_path / "made"
    folder.mkdir()
    (folder / "component.py").write_text(MADE)
    reference = "weir.pipelines.examples.flights:app"
    with project.load_component_and_build_defs(folder) as (_, defs):
        assert names(defs) == names(definitions(supervise(load_application(reference), reference)))


ATTRIBUTES = """\
  topics: {clicks: website/clicks}
  thresholds: {lag_max_records: 5, stalled_max_s: 60}
  on_lag: {actions: [commits], pause_s: 5}
  first_day: 2026-01-02
  end_day: 2026-02-03
  owners: ["team:clicks"]
  unwatched: [succession]
  weir: {dir: /data/weir, slots: 3}
"""


def test_each_attribute_reaches_the_application(project):
    write(project, "clicking", ATTRIBUTES)
    with project.load_component_and_build_defs(project.defs_folder_path / "clicking") as (component, defs):
        made = component.supervised
        assert made.topics == {"clicks": dg.AssetKey(["website", "clicks"])}
        assert made.thresholds == Thresholds(lag_max_records=5, stalled_max_s=60)
        assert (list(made.on_lag.actions), made.on_lag.pause_s) == (["commits"], 5)
        assert (made.first_day, made.end_day) == (date(2026, 1, 2), date(2026, 2, 3))
        assert (list(made.owners), list(made.unwatched)) == (["team:clicks"], ["succession"])
        assert defs.resources["weir"] == WeirResource(dir="/data/weir", slots=3)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ("  thresholds: {lag_max_record: 5}\n", "lag_max_record"),
        ("  on_lag: {actions: [prayer]}\n", "prayer"),
        ("  thresholds: {stalled_max_s: 1}\n", "it must be 10 s at least"),
        ("  unwatched: [sucession]\n", "no sensor or schedule is called sucession"),
    ],
)
def test_an_attribute_that_cannot_be_is_refused_by_its_name(project, attributes, said):
    write(project, "clicking", attributes)
    with pytest.raises(Exception, match="clicking") as caught, project.build_all_defs():
        pass
    assert re.search(said, "".join(chain(caught.value)))


def chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def test_two_components_share_the_jobs_and_sensors_of_their_code_location(project):
    write(project, "a_first", program="first")
    write(project, "b_second", "  weir: {dir: /data/weir}\n", program="second")
    with project.build_all_defs() as defs:
        found = names(defs)
        assert {"first/ingest", "second/ingest", "kafka/clicks"} <= found["assets"]
        assert {"first_run", "second_run", "weir_pause", "weir_restore"} <= found["jobs"]
        pausing = defs.get_repository_def().get_job("weir_pause")
        assert list(pausing.partitions_def.get_partition_keys()) == ["first", "second"]
        assert defs.resources["weir"] == WeirResource(dir="/data/weir")


def test_two_components_that_say_where_weir_works_are_refused_and_one_will_do(project):
    write(project, "a_first", "  weir: {dir: /data/weir}\n", program="first")
    write(project, "b_second", "  weir: {dir: /data/other}\n", program="second")
    with pytest.raises(Exception, match="a_first") as caught, project.build_all_defs():
        pass
    assert "keep the attribute weir in one of them" in "".join(chain(caught.value))
    path = project.defs_folder_path / "b_second" / "defs.yaml"
    path.write_text(path.read_text().partition("  weir:")[0])
    with project.build_all_defs() as defs:
        assert defs.resources["weir"] == WeirResource(dir="/data/weir")


def test_a_component_beside_a_call_of_definitions_is_refused_with_the_way_out(project):
    write(project, "a_first", program="first")
    write(project, "b_second", program="second")
    (project.defs_folder_path / "b_second" / "defs.yaml").unlink()
    by_hand = (
        "from weir.dagster import definitions\nfrom {}.defs.b_second.program import app\ndefs = definitions(app)\n"
    )
    (project.defs_folder_path / "by_hand.py").write_text(by_hand.format(project.project_name))
    with pytest.raises(Exception, match="defs") as caught, project.build_all_defs():
        pass
    assert "different resources with same key 'weir'" in "".join(chain(caught.value))
    (project.defs_folder_path / "by_hand.py").unlink()
    (project.defs_folder_path / "b_second" / "defs.yaml").write_text(
        f"type: {TYPE}\nattributes: {{program: .program:app}}"
    )
    with project.build_all_defs() as defs:
        assert {"first_run", "second_run"} <= names(defs)["jobs"]


def test_dg_finds_the_component_in_the_installed_package(pytestconfig):
    project = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text())["project"]
    modules = project["entry-points"]["dagster_dg_cli.registry_modules"].values()
    assert {key.to_typename() for key in discover_package_objects(list(modules))} == {TYPE}


def test_dg_describes_every_attribute():
    schema = WeirApplication.get_model_cls().model_json_schema()
    assert [name for name, each in schema["properties"].items() if not each.get("description")] == []
