"""The command line as a newcomer meets it: help with examples, one-sentence errors, exit codes."""

import contextlib
import json
import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from weir.pipelines.cli import run
from weir.pipelines.cli.app import app

COMMANDS = [
    ("demo",),
    ("setup",),
    ("run",),
    ("package",),
    ("plan",),
    ("describe",),
    ("status",),
    ("tasks",),
    ("top",),
    ("logs",),
    ("reset",),
    ("show",),
    ("sql",),
    ("query",),
    ("commit",),
    ("pause",),
    ("resume",),
    ("scale",),
    ("stop",),
    ("compact",),
    ("snapshot",),
    ("restore",),
    ("verify",),
    ("repartition",),
    ("stacks",),
    ("bench",),
    ("kafka", "start"),
    ("kafka", "stop"),
    ("kafka", "create"),
    ("kafka", "list"),
    ("kafka", "produce"),
    ("kafka", "consume"),
    ("kafka", "delete"),
    ("migrate", "from-group"),
    ("migrate", "from-checkpoints"),
    ("migrate", "from-spark"),
    ("migrate", "from-kafka-streams"),
    ("migrate", "to-group"),
    ("migrate", "to-kafka-streams"),
    ("migrate", "to-checkpoints"),
    ("backfill", "run"),
    ("backfill", "swap"),
    ("backfill", "discard"),
    ("backfill", "list"),
    ("state", "list"),
    ("state", "remove"),
    ("sink", "list"),
    ("sink", "retry"),
    ("sink", "skip"),
    ("sink", "resume"),
    ("sink", "discard"),
    ("dead-letters", "list"),
    ("dead-letters", "show"),
    ("dead-letters", "replay"),
    ("dead-letters", "discard"),
]
README = Path(__file__).parents[3] / "README.md"
STEERING = ("commit", "pause", "resume", "stop")


@pytest.fixture
def weir(tmp_path, monkeypatch):
    """Runs ``weir`` in an empty folder, with the default ``--dir``."""
    monkeypatch.chdir(tmp_path)
    for name in ("WEIR_DIR", "WEIR_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    runner = CliRunner()
    return lambda *arguments, **options: runner.invoke(app, list(arguments), **options)


def flat(text: str) -> str:
    """Help and error text without frames and line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


def test_every_command_is_in_the_list():
    names = set(get_command(app).commands)
    assert names == {path[0] for path in COMMANDS}


def test_every_command_is_in_the_readme():
    block = README.read_text().partition("## Operating it\n```\n")[2].partition("```")[0]
    lines = re.findall(r"weir ([a-z|-]+)(?: ([a-z|]+))?", block)
    shown = {
        (name, *rest)
        for names, more in lines
        for name in names.split("|")
        for rest in ([(each,) for each in more.split("|")] if name == "kafka" else [()])
    }
    assert shown == {path if path[0] == "kafka" else path[:1] for path in COMMANDS}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_the_folder(weir, path):
    result = weir(*path, "--help")
    assert result.exit_code == 0
    assert f"Example: weir {' '.join(path)}" in flat(result.stdout)
    assert ("--dir" in result.stdout) == (path not in [("setup",), ("package",)])
    assert "--debug" in result.stdout


@pytest.mark.parametrize("command", [*STEERING, "logs", "reset", "compact", "stacks", "tasks", "top"])
def test_an_empty_folder_says_how_to_start(weir, command):
    result = weir(command, "flights")
    assert result.exit_code == 1
    assert "nothing has run in" in flat(result.stderr)
    assert "weir demo" in flat(result.stderr)
    assert "Traceback" not in result.stderr


def test_debug_adds_the_stack_trace(weir):
    result = weir("show", "flights", "carrier_totals", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_a_setting_without_a_value_is_refused(weir):
    result = weir("run", "weir.pipelines.examples.flights:app", "--set", "slots")
    assert result.exit_code == 1
    assert "KEY=VALUE" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["run", "shop:app"],
        ["plan", "shop:app"],
        ["backfill", "run", "shop", "--everything"],
        ["migrate", "from-group", "shop:app", "g"],
    ],
)
def test_an_empty_list_of_brokers_is_refused(weir, command):
    result = weir(*command, "--bootstrap-servers", "")
    assert "'bootstrap_servers' in a flag cannot be ''" in " ".join(result.stderr.split())


def test_an_unknown_setting_names_the_nearest(weir):
    result = weir("run", "weir.pipelines.examples.flights:app", "--set", "slot=2")
    assert result.exit_code == 1
    assert "'slots'" in flat(result.stderr)


def test_a_module_that_does_not_exist_is_one_sentence(weir):
    result = weir("run", "no_such_module:app")
    assert result.exit_code == 1
    assert "no_such_module" in result.stderr
    assert "unexpected" not in result.stderr


def test_describe_names_the_sub_topologies(weir):
    result = weir("describe", "weir.pipelines.examples.flights:app")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("Sub-topology") == 2
    assert "hourly" in result.stdout
    assert "by_carrier" in result.stdout


def test_describe_finds_a_module_in_the_current_folder(weir, tmp_path):
    (tmp_path / "my_own_job.py").write_text("from weir.pipelines.examples.flights import app as mine\n")
    result = weir("describe", "my_own_job:mine")
    assert result.exit_code == 0, result.stderr


def test_status_of_an_empty_folder_is_an_empty_list(weir):
    result = weir("status", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"applications": []}


def test_a_wrong_command_is_a_usage_error(weir):
    assert weir("strat").exit_code == 2


def test_bench_from_an_installed_package_says_that_it_needs_a_clone(weir, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "__file__", str(tmp_path / "site-packages/weir/pipelines/cli/run.py"))
    result = weir("bench", "--quick")
    assert result.exit_code == 1
    for fact in ("not part of the installed package", "clone", "`make bench`"):
        assert fact in flat(result.stderr)


def test_bench_in_a_clone_runs_the_benchmarks_from_any_folder(weir, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(README.parent))])
    result = weir("bench", "--job", "no such job")
    assert result.exit_code == 1
    assert "there is no job no such job; the jobs are" in flat(result.stderr)


def test_bench_passes_its_options_on(weir, monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr("bench.main", lambda **options: found.append(options))
    given = [
        "--quick",
        "--job",
        "repartition_sum",
        "--weir-alone",
        "--peers",
        "kafka-streams,flink-sql-heap",
        "--fresh",
    ]
    assert weir("bench", *given).exit_code == 0
    assert found == [
        {
            "quick": True,
            "as_json": False,
            "jobs": ["repartition_sum"],
            "peers": ["kafka-streams", "flink-sql-heap"],
            "weir_alone": True,
            "fresh": True,
            "dir": tmp_path / ".weir",
        }
    ]


@pytest.mark.broker
def test_a_topic_is_created_once_in_the_embedded_broker(weir, broker, topic, monkeypatch):
    monkeypatch.setattr("weir.infra.kafka.broker.EmbeddedBroker.used", lambda embedded: contextlib.nullcontext(broker))
    name = topic(3)
    assert f"topic '{name}' already exists, with 3 partitions at {broker}" in weir("kafka", "create", name).output
    created = weir("kafka", "create", f"{name}-new", "--partitions", "2")
    assert f"topic '{name}-new' created, with 2 partitions at {broker}" in created.output
    refused = weir("kafka", "create", "no topic")
    assert refused.exit_code == 1
    assert "(topic 'no topic'): Topic name is invalid" in refused.output


def test_stopping_kafka_where_none_runs_says_so(weir, tmp_path):
    result = weir("kafka", "stop", "--dir", str(tmp_path))
    assert result.exit_code == 0
    assert result.stdout.split() == f"no embedded Kafka is running in {tmp_path}".split()
