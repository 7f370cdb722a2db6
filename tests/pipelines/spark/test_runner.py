"""How a run begins before Spark is started: when no broker answers, at a real address where nobody listens, and when
the program does not fit what is committed."""

from __future__ import annotations

from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, program, sales
from weir.infra.control import ControlDatabase
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.infra.settings import Settings
from weir.pipelines.spark import brokers, runner
from weir.pipelines.spark.errors import TopologyChangedError
from weir.pipelines.spark.progress import RunSummary
from weir.state.errors import TableSchemaError

NOBODY = "127.0.0.1:1"
REFERENCE = "tests.integration.applications:reads_nowhere"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "FIRST_ANSWER_LIMIT_S", 0.2)
    monkeypatch.setattr(brokers, "ANSWER_LIMIT_S", 0.05)
    monkeypatch.setattr(brokers, "RETRY_S", 0.01)
    return Settings(dir=tmp_path, bootstrap_servers=NOBODY)


def test_a_run_until_caught_up_gives_up_on_brokers_that_have_never_answered(settings):
    messages = []
    with pytest.raises(BrokerUnreachableError, match=r"no answer from Kafka at 127.0.0.1:1 \(.*, for 0.2 s\); check"):
        runner.run(
            REFERENCE,
            settings,
            bootstrap_servers=NOBODY,
            until_caught_up=True,
            on_progress=lambda progress: messages.append(progress.message),
        )
    assert messages
    assert all(message.endswith("; trying again for 0.2 s") for message in messages)
    assert ControlDatabase(settings.control_database_url).application_status("reads-nowhere").state == "failed"
    assert not settings.warehouse.exists(), "nothing was claimed"


def test_an_endless_run_waits_for_its_brokers_until_it_is_stopped(settings):
    messages, stop = [], Event()

    def hear(progress):
        messages.append(progress.message)
        if len(messages) == 10:  # each attempt took 0.05 s: the limit of a run until caught up has passed
            stop.set()

    assert runner.run(REFERENCE, settings, bootstrap_servers=NOBODY, stop=stop, on_progress=hear).reason == "stopped"
    assert all(message.endswith("; trying again until stopped") for message in messages)


@pytest.mark.parametrize(
    ("changes", "refusal"), [({"store": "other"}, TopologyChangedError), ({"total": "sum"}, TableSchemaError)]
)
def test_a_program_that_does_not_fit_what_is_committed_is_refused_before_spark_starts(
    tmp_path, settings, monkeypatch, changes, refusal
):
    topics = Topics({("sales", partition): sales(20, partition) for partition in (0, 1)})
    Place(application(), topics, tmp_path).run()
    monkeypatch.setattr(runner, "load_application", lambda reference: program(**changes))
    monkeypatch.setattr(runner.Brokers, "topics_once_there", lambda *_: topics.topics())
    monkeypatch.setattr(runner, "spark_context", lambda *_: pytest.fail("Spark starts"))
    with pytest.raises(refusal):
        runner.run("module:app", settings, bootstrap_servers=NOBODY, accept_state_loss=refusal is TableSchemaError)


def test_what_was_accepted_at_the_start_is_not_accepted_when_topics_appear(settings, monkeypatch):
    accepted = []

    def generation(run):
        accepted.append((run.accept_state_loss, run.accept_lost_records))
        reason = "new topics" if len(accepted) < 3 else "stopped"
        return RunSummary(
            application="reads-nowhere",
            generation=len(accepted),
            epoch=1,
            commits=1,
            records_in=10,
            seconds=1.0,
            reason=reason,
            totals={},
        )

    monkeypatch.setattr(runner._Generations, "run", generation)
    summary = runner.run(
        REFERENCE, settings, bootstrap_servers=NOBODY, accept_state_loss=True, accept_lost_records=True
    )
    assert accepted == [(True, True), (False, False), (False, False)]
    assert (summary.generation, summary.records_in, summary.commits, summary.reason) == (3, 30, 3, "stopped")
