"""What Dagster loads: quickly, without Spark, and with the lineage of the data."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.code_pointer import load_python_file  # has no public name
from dagster._core.remote_representation.external_data import RepositorySnap  # has no public name
from dagster._serdes import serialize_value  # has no public name

from tests.orchestration.applications import clicks
from weir import Application, Json, StreamsBuilder, String
from weir.orchestration.application import definitions, supervise
from weir.orchestration.assets.ingest import ACCEPTED, IngestConfig
from weir.orchestration.definitions import defs


@dataclass(frozen=True)
class Visit:
    """Somebody has opened a page."""

    page: str


def plain(visit: Visit) -> Visit:
    """The page without what follows the question mark.

    Visits are counted by it.
    """
    return Visit(visit.page.partition("?")[0])


def described_by_docstrings() -> Application:
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=String("user"), value=Json(Visit))
    visits.map_values(plain).to_delta("pages")
    visits.to_delta("raw")
    return Application("described", builder)


DESCRIBED = described_by_docstrings()
MOST_TIMES_DAGSTER = 3.3
"""Of the CPU time that importing Dagster alone takes: 0.9 s on an idle machine, so 3 s there."""


@pytest.mark.slow
def test_definitions_load_quickly_and_without_what_only_drivers_and_commands_need():
    probe = (
        "import sys, weir.orchestration.definitions as d; d.defs.get_repository_def(); "
        "print(*sorted({m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j', 'pyarrow', 'pandas', 'typer'}))"
    )
    for _ in range(3):  # the first one compiles modules, and others may use the machine
        dagster_s, _ = cpu_seconds("import dagster")
        seconds, printed = cpu_seconds(probe)
        assert printed == ""
        if seconds / dagster_s < MOST_TIMES_DAGSTER:
            break
    assert seconds / dagster_s < MOST_TIMES_DAGSTER


def cpu_seconds(program: str) -> tuple[float, str]:
    """The CPU seconds that a program takes in its own process, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout.strip()


def test_tables_come_from_the_ingest_and_the_ingest_from_its_topics():
    graph = defs.resolve_asset_graph()
    for application, tables in (
        ("flights", ("late_departures", "carrier_totals", "changelog/hourly", "changelog/by_carrier", "dead_letters")),
        ("weather", ("daily_weather", "changelog/daily", "dead_letters")),
    ):
        ingest, topic = dg.AssetKey([application, "ingest"]), dg.AssetKey([application, "topic"])
        assert graph.get(ingest).parent_keys == {topic}
        made = {dg.AssetKey([application, *table.split("/")]) for table in tables}
        assert graph.get(ingest).child_keys == {*made, dg.AssetKey([application, "positions"])}
        assert {key.path[0] for key in graph.get_ancestor_asset_keys(ingest)} == {application}


def test_the_topics_of_a_pattern_are_one_asset():
    builder = StreamsBuilder()
    builder.stream(re.compile(r"orders-(eu|us)/?.*"), key=String("user"), value=String("item")).to_delta("orders")
    graph = definitions(supervise(Application("shop", builder), "nowhere:shop")).resolve_asset_graph()
    topics = graph.get(dg.AssetKey(["kafka", "orders-_eu_us_._"]))
    assert topics.description == "The Kafka topics that match orders-(eu|us)/?.*, filled elsewhere."
    assert dg.AssetKey(["shop", "ingest"]) in topics.child_keys


def test_a_table_shows_its_columns_and_their_types_before_anything_has_run():
    [spec] = [spec for spec in defs.resolve_all_asset_specs() if spec.key == dg.AssetKey(["flights", "carrier_totals"])]
    columns = {column.name: column for column in spec.metadata["dagster/column_schema"].columns}
    assert columns["flights"].type == "integer"
    assert [name for name, column in columns.items() if "weir/key" in column.tags] == ["carrier"]


def configs(base: type[dg.Config]) -> Iterator[type[dg.Config]]:
    """The configurations that the launchpad asks for."""
    for config in base.__subclasses__():
        if config.__module__.startswith("weir."):
            yield config
        yield from configs(config)


def described() -> Iterator[tuple[str, str | None]]:
    """Everything that the UI shows of the definitions, with its description."""
    graph, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    yield from ((key.to_user_string(), graph.get(key).description) for key in graph.get_all_asset_keys())
    yield from ((key.to_user_string(), graph.get_check_spec(key).description) for key in graph.asset_check_keys)
    yield from ((each.name, each.description) for each in (*repository.sensor_defs, *repository.schedule_defs))
    for job in repository.get_all_jobs():
        if not job.name.startswith("__"):  # Dagster's own
            yield job.name, job.description
            for node in job.nodes:
                yield node.name, node.definition.description
    for op in defs.resolve_implicit_global_asset_job_def().nodes:
        yield op.name, op.definition.description
    for config in configs(dg.Config):
        for name, field in config.model_fields.items():
            yield f"{config.__name__}.{name}", field.description


def test_everything_in_the_ui_has_a_description_for_operators():
    texts = dict(described())
    assert len(texts) > 80
    assert [name for name, text in texts.items() if not (text or "").endswith(".")] == []
    modules = ("orchestration.", "pipelines.", "state.", "infra.")
    assert [name for name, text in texts.items() if any(module in text for module in modules)] == []


def test_assets_show_their_owners_and_application():
    clicking = definitions(supervise(clicks("clicking"), "nowhere:app", owners=["team:clicks"]))
    specs = [spec for spec in clicking.resolve_all_asset_specs() if spec.key.path[0] == "clicking"]
    assert {spec.key.path[1] for spec in specs} == {
        *("ingest", "changelog", "dead_letters", "compaction", "checkpoints", "positions")
    }
    assert all(list(spec.owners) == ["team:clicks"] for spec in specs)
    assert all(each.tags["weir/application"] == "clicking" for each in specs)
    found = clicking.get_repository_def()
    shown = [*found.get_all_jobs(), *found.sensor_defs, *found.schedule_defs]
    assert {each.name: list(each.owners or ()) for each in shown if each.name != "__ASSET_JOB"} == {
        each.name: ["team:clicks"] for each in shown if each.name != "__ASSET_JOB"
    }


def test_an_ingest_links_to_its_program_and_says_what_to_launch():
    [spec] = [spec for spec in defs.resolve_all_asset_specs() if spec.key.path == ["flights", "ingest"]]
    [code] = spec.metadata["dagster/code_references"].code_references
    assert Path(code.file_path).read_text().splitlines()[code.line_number - 1].startswith("app = ")
    assert "| nothing runs, or a check names it | `flights_run` |" in spec.metadata["what to launch"].value
    assert spec.description.startswith("Departures from New York in 2013: lateness by route and hour")


def test_topics_and_outputs_are_described_by_docstrings_of_the_program():
    described = definitions(supervise(DESCRIBED, "tests.orchestration.test_definitions:DESCRIBED"))
    texts = {"/".join(spec.key.path): spec.description for spec in described.resolve_all_asset_specs()}
    assert texts["kafka/visits"] == "Somebody has opened a page. The Kafka topic visits, filled elsewhere."
    assert texts["described/pages"].startswith("The page without what follows the question mark. The Delta table pages")
    assert texts["described/raw"].startswith("The Delta table raw")


def test_definitions_of_a_second_call_are_refused_since_one_call_takes_all_applications():
    first, second = supervise(clicks("first"), "nowhere:first"), supervise(clicks("second"), "nowhere:second")
    of_one = definitions(first)
    with pytest.raises(dg.DagsterInvariantViolationError, match="different resources with same key 'weir'"):
        dg.Definitions.merge(of_one, definitions(second))
    own = dg.Definitions(resources={"path": dg.ResourceDefinition.hardcoded_resource("here")})
    both = dg.Definitions.merge(own, definitions(first, second), own)
    assert {job.name for job in both.get_repository_def().get_all_jobs()} >= {"first_run", "second_run", "weir_pause"}
    assert set(both.resources) == {"path", "weir", "pipes"}
    assert dg.Definitions.merge(of_one, of_one).resources.keys() == {"weir", "pipes"}, "the same result is no other"


def test_drivers_look_for_modules_where_the_code_location_does(tmp_path):
    """Its ``python_file`` may be outside of its ``working_directory``."""
    for folder in ("file", "working_directory"):
        (tmp_path / folder).mkdir()
    (tmp_path / "working_directory" / "its_topic.py").write_text('TOPIC = "clicks"')
    (tmp_path / "file" / "its_defs.py").write_text(
        "from its_topic import TOPIC\n"
        "from weir import Application, Count, StreamsBuilder, String\n"
        "from weir.dagster import supervise\n"
        "builder = StreamsBuilder()\n"
        'builder.stream(TOPIC, key=String("user"), value=String("page")).group_by_key().agg("counts", n=Count())\n'
        'app = Application("clicking", builder)\n'
        "supervised = supervise(app)\n"
    )
    try:
        loaded = load_python_file(str(tmp_path / "file" / "its_defs.py"), str(tmp_path / "working_directory"))
        assert loaded.supervised.reference == "its_defs:app"
        path = os.pathsep.join(loaded.supervised.import_from)
    finally:
        for name in ("its_defs", "its_topic"):
            sys.modules.pop(name, None)
    assert path.split(os.pathsep)[:2] == [str(tmp_path / "file"), str(tmp_path / "working_directory")]
    probe = "import its_defs; print(its_defs.app.id)"
    done = subprocess.run([sys.executable, "-c", probe], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert done.stdout.split() == [b"clicking"]


def test_a_further_application_adds_less_than_a_hundred_kilobytes_to_what_dagster_loads():
    """10 MB for a hundred, whose readers are mostly these."""
    sizes = []
    for number in (2, 3):
        defs = definitions(*(supervise(clicks(f"clicks{each}"), "nowhere:app") for each in range(number)))
        sizes.append(len(serialize_value(RepositorySnap.from_def(defs.get_repository_def()))))
    assert sizes[1] - sizes[0] < 100_000


def test_a_topic_that_nothing_here_fills_is_one_external_asset_for_all_its_readers():
    first, second = supervise(clicks("first"), "nowhere:first"), supervise(clicks("second-one"), "nowhere:second")
    graph = definitions(first, second).resolve_asset_graph()
    clicked = dg.AssetKey(["kafka", "clicks"])
    assert graph.get(clicked).is_external
    assert graph.get(clicked).child_keys == {dg.AssetKey(["first", "ingest"]), dg.AssetKey(["second-one", "ingest"])}


def test_an_ingest_without_configuration_ends_when_it_has_caught_up():
    assert IngestConfig().until_caught_up is True
    assert IngestConfig().take_over is False


def test_an_ingest_accepts_no_loss_unless_it_is_told_to():
    assert not any(getattr(IngestConfig(), name) for name in ACCEPTED)


def test_the_workspace_names_the_definitions(pytestconfig):
    workspace = yaml.safe_load((pytestconfig.rootpath / "workspace.yaml").read_text())
    [location] = workspace["load_from"]
    assert location["python_module"]["module_name"] == "weir.orchestration.definitions"
