"""The job that deals state out after a topic has grown: the table is then that of a plain count of the records."""

from collections import Counter
from collections.abc import Iterable

import dagster as dg
import pytest

from tests.pipelines.cli.typed import Terminal, opened
from tests.pipelines.order.model import partition_of
from weir import Application, Int64, StreamsBuilder, String
from weir.orchestration.application import definitions, supervise
from weir.orchestration.resources import WeirResource
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

USERS = [f"user-{number % 7}" for number in range(90)]


@pytest.fixture
def terminal(tmp_path, monkeypatch) -> Terminal:
    return opened(tmp_path, monkeypatch)


@pytest.fixture
def program(terminal) -> str:
    """A program that has counted 60 records of two partitions, which are four now with 30 more."""
    builder = StreamsBuilder()
    stream = builder.stream("views", key=String("user"), value=Int64("seconds"))
    stream.group_by_key().count("counts").to_delta("out")
    reference = terminal.has("views", Application("views", builder))
    produce(terminal, USERS[:60], partitions=2)
    assert terminal.run(reference).code == 0
    produce(terminal, USERS[60:], partitions=4)
    return reference


def produce(terminal: Terminal, users: Iterable[str], *, partitions: int) -> None:
    rows = terminal.topics.rows
    for partition in range(partitions):
        rows.setdefault(("views", partition), [])
    for user in users:
        partition = rows["views", partition_of(user, partitions)]
        partition.append((user.encode(), (1).to_bytes(8, "big"), 1_000 + len(partition)))


@pytest.fixture
def run(terminal, program, instance):
    """``run(dry_run)`` runs the job; whether it succeeded, and what it says."""
    weir = WeirResource(dir=str(terminal.folder))
    job = definitions(supervise(terminal.programs.views, program), weir=weir).resolve_job_def("weir_repartition")

    def launch(*, dry_run: bool) -> tuple[bool, str]:
        result = job.execute_in_process(
            instance=instance,
            raise_on_error=False,
            run_config={"ops": {"weir_deal_out": {"config": {"dry_run": dry_run}}}},
        )
        if not result.success:
            [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
            return False, failed.user_failure_data.description
        [output] = [event.step_output_data for event in result.all_events if event.is_successful_output]
        return True, " ".join(str(entry.value) for entry in output.metadata.values())

    return launch


def recorded(instance: dg.DagsterInstance) -> list[dict[str, object]]:
    records = instance.fetch_materializations(dg.AssetKey(["views", "positions"]), limit=10).records
    return [{name: entry.value for name, entry in record.asset_materialization.metadata.items()} for record in records]


def test_the_state_is_dealt_out_once_the_config_says_so(terminal, program, run, instance):
    assert "deal it out among them with `weir repartition views`" in terminal.run(program).text
    ok, said = run(dry_run=True)
    assert ok, said
    assert "sub-topology views: 2 tasks become 4" in said
    assert recorded(instance) == []
    assert len(newest_commit(terminal.warehouse, "views").tasks) == 2
    ok, said = run(dry_run=False)
    assert ok, said
    assert "its tasks restore their stores when it is started" in said
    (made,) = recorded(instance)
    assert sorted(made["offsets"]["views"]) == ["0", "1", "2", "3"]
    assert terminal.run(program).code == 0
    assert dict(read_table(terminal.warehouse / "views" / "out").select("user", "count").iter_rows()) == Counter(USERS)
    ok, said = run(dry_run=False)
    assert (ok, len(recorded(instance))) == (True, 1), said
    assert "nothing was changed" in said


def test_what_is_in_the_way_is_said_without_commands(terminal, program, run):
    produce(terminal, USERS[:7], partitions=2)
    ok, said = run(dry_run=False)
    assert not ok
    assert (
        "read what is left in the old partitions first with the job views_run with until_caught_up: true, "
        "committed_partitions: true in its config"
    ) in said
    assert "`weir" not in said
    assert len(newest_commit(terminal.warehouse, "views").tasks) == 2
