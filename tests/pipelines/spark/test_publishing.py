"""The process that publishes is begun again when it dies, and a stop does not wait for a sink that is away."""

import math
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.waiting import wait_for
from weir.pipelines.publishing.process import PublishingSettings
from weir.pipelines.publishing.state import Decision
from weir.pipelines.spark import publishing as module
from weir.pipelines.spark.errors import RunError
from weir.pipelines.spark.publishing import Publishers
from weir.state.commit.outbox import outbox_name
from weir.state.commit.tables import AppendTable
from weir.state.types import TableSpec

NOBODY = "127.0.0.1:9"


@pytest.fixture
def publishers(tmp_path, monkeypatch):
    """Of a sink whose broker does not answer."""
    (tmp_path / "away.py").write_text(
        "from weir import Application, StreamsBuilder, String\n"
        "builder = StreamsBuilder()\n"
        "builder.stream('in', key=String('user'), value=String('text')).to('out')\n"
        "app = Application('away', builder)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    from away import app

    for spec in app.topology.outbox_specs():
        assert isinstance(spec, TableSpec)
        assert spec.name == outbox_name("out")
        AppendTable.create(tmp_path / "warehouse" / "away", spec, "away")
    made = Publishers()
    made.start(settings_of("away:app", tmp_path))
    yield made
    made.close(0.0)


def settings_of(reference, folder):
    return PublishingSettings(
        driver=os.getpid(),
        reference=reference,
        warehouse=str(folder / "warehouse"),
        kafka={"bootstrap.servers": NOBODY},
        sql_url="",
        generation=1,
    )


def test_the_process_begins_again_when_it_is_killed_and_ends_with_a_stop(publishers):
    wait_for(lambda: publishers.states, "it says how the sink is doing")
    first = publishers._process
    first.send_signal(signal.SIGKILL)
    first.wait()
    publishers.states = []
    publishers.keep_alive()
    assert publishers._process is not first
    wait_for(lambda: publishers.states, "the new one says how the sink is doing")
    publishers.keep_alive()
    began = time.monotonic()
    publishers.close(0.5)
    assert publishers._process.returncode is not None
    assert time.monotonic() - began < 5
    publishers.close()


def test_the_process_tells_again_and_again_and_of_no_sinks_there_is_nothing_to_tell(publishers):
    wait_for(lambda: publishers.states, "it says how the sink is doing")
    told = publishers.tells
    wait_for(lambda: publishers.tells >= told + 2, "it says so again")
    without = Publishers()
    assert without.tells == math.inf
    with pytest.raises(RunError, match="the application has no sinks outside the warehouse"):
        without.decide(Decision(sink="out", action="retry"))


def test_a_decision_that_no_sink_waits_for_is_refused(publishers):
    wait_for(lambda: publishers.states, "it says how the sink is doing")
    with pytest.raises(RunError, match="there is no sink 'other'; the sinks are out"):
        publishers.decide(Decision(sink="other", action="skip"))
    with pytest.raises(RunError, match="the sink 'out' has nothing to skip; it goes on by itself"):
        publishers.decide(Decision(sink="out", action="skip"))
    with pytest.raises(RunError, match="no rows of the sink 'out' are aside"):
        publishers.decide(Decision(sink="out", action="retry"))


DYING = """
import os
from weir import Application, Sink, StreamsBuilder, String

class Dying(Sink):


    def send(self, batch):
        os._exit(7)

builder = StreamsBuilder()
builder.stream("in", key=String("user"), value=String("text")).to_sink(Dying(), name="dying")
app = Application("dying", builder)
"""


def test_of_a_process_that_dies_again_and_again_the_sinks_say_so_and_what_waits(tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(module, "RESTART_PAUSE_S", 0.0)
    from dying import app

    Place(app, Topics({("in", 0): [(b"ann", b"tea", number) for number in range(9)]}), tmp_path).run()
    publishers = Publishers()
    publishers.start(settings_of("dying:app", tmp_path))
    for _ in range(3):
        publishers._process.wait(30)
        publishers._listener.join()
        publishers.keep_alive()
        wait_for(lambda: publishers.states, "it says how the sink is doing")
        (state,) = publishers.states
        assert state.waiting_rows == 9
        assert state.summary == "waits: the process that publishes has died (code 7); it begins again"
    publishers.close(0.0)


def test_a_process_whose_driver_died_before_it_began_publishes_nothing_and_ends(tmp_path):
    died = subprocess.Popen(["true"])
    died.wait()
    orphan = subprocess.run(
        [sys.executable, "-m", module.PROCESS],
        input=msgspec.json.encode(msgspec.structs.replace(settings_of("nobody:app", tmp_path), driver=died.pid)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (orphan.returncode, orphan.stdout, orphan.stderr) == (1, b"", b""), "it does not even load the program"


def test_an_interrupt_from_the_terminal_is_left_to_the_driver(publishers):
    wait_for(lambda: publishers.states, "it says how the sink is doing")
    publishers.states = []
    publishers._process.send_signal(signal.SIGINT)
    wait_for(lambda: publishers.states, "it goes on telling")
    assert publishers._process.poll() is None
