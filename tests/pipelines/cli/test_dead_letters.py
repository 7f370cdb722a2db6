"""``weir dead-letters``, over an application that runs in this process."""

from __future__ import annotations

import json
from collections import Counter

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.pipelines.cli.typed import opened
from tests.pipelines.spark.evolving import Click, clicks
from weir import Application, Count, Json, StreamsBuilder, String
from weir.pipelines.operations import dead_letters
from weir.pipelines.operations.dead_letters import dead_letters_of, discard
from weir.pipelines.spark import replays
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.state.commit.tables import read_rows


def not_a_seventh(key: str, value: Click) -> bool:
    return 1 / (value.ms % 7) > 0


def by_user() -> Application:
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click)).filter(not_a_seventh)
    stream.group_by_key().agg("users", n=Count()).to_delta("users")
    return Application("clicks", builder, on_error="dead_letter", on_processing_error="dead_letter")


def corrected() -> Application:
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click)).filter(lambda key, value: True)
    stream.group_by_key().agg("users", n=Count()).to_delta("users")
    return Application("clicks", builder, on_error="dead_letter")


@pytest.fixture
def there(tmp_path, monkeypatch):
    terminal = opened(tmp_path, monkeypatch)
    terminal.topics.rows["clicks", 0] = clicks(0, 40)
    terminal.topics.rows["clicks", 0][5] = (b"ann\x1b[2J", b"{\n\x07", 5_000)
    answer = terminal.run(terminal.has("app", by_user()))
    assert answer.code == 0, answer.text
    return terminal


def letters_of(terminal) -> pl.DataFrame:
    return dead_letters_of(terminal.settings, "clicks").newest([*DEAD_LETTERS.schema, "replayed"])


def offsets(terminal) -> list[int]:
    return sorted(letters_of(terminal)["offset"])


def test_letters_are_counted_by_reason_and_one_is_shown_with_its_trace(there):
    found = json.loads(there.weir("dead-letters list clicks --json").text)
    assert [(each["stage"], each["letters"]) for each in found["counts"]] == [("processing", 6), ("deserialization", 1)]
    ids = {each["id"] for each in found["letters"]}
    (seventh,) = (id for id in ids if id.startswith("clicks-0-14-"))
    letter = json.loads(there.weir(f"dead-letters show clicks {seventh} --json").text)
    assert (letter["offset"], letter["key"], json.loads(letter["value"])["ms"]) == (14, "user-14", 14)
    assert "ZeroDivisionError" in letter["trace"]
    assert "not_a_seventh" in letter["trace"]
    text = there.weir(f"dead-letters show clicks {seventh}").text
    assert "operator: KSTREAM-FILTER-0000000001" in text
    status = there.weir("status clicks")
    assert "dead letters so far: 7 (each failed replay counts again; " in status.text
    assert "`weir dead-letters list clicks` shows which wait)" in status.text
    assert "7 of 7 dead letters; 7 wait" in there.weir("dead-letters list clicks").text
    assert "7 dead letters so far" in there.run("programs:app").text
    assert 'value: {"page": "page-2", "ms": 14}' in text
    assert there.weir("dead-letters list clicks --limit 2").code == 0


def test_what_a_letter_holds_commands_no_terminal(there):
    (fifth,) = letters_of(there).filter(offset=5)["id"]
    shown, listed = there.weir(f"dead-letters show clicks {fifth}").text, there.weir("dead-letters list clicks").text
    assert r"key: ann\x1b[2J value: { \x07 reason:" in shown
    assert not {"\x1b", "\x07"} & {*shown, *listed}


def test_letters_are_discarded_by_id_or_all_while_new_ones_come(there, monkeypatch):
    (id,) = letters_of(there).filter(offset=14)["id"]
    assert "deleted 1 dead letter" in there.weir(f"dead-letters discard clicks {id} --yes").text
    assert offsets(there) == [0, 5, 7, 21, 28, 35]
    there.topics.rows["clicks", 0] += clicks(40, 5)
    real = dead_letters.replace_files

    def beside(*given, **options):
        with monkeypatch.context() as undisturbed:
            undisturbed.setattr(dead_letters, "replace_files", real)
            assert there.run("programs:app").code == 0  # the driver adds a letter after the files were read
        return real(*given, **options)

    monkeypatch.setattr(dead_letters, "replace_files", beside)
    assert discard(there.settings, "clicks") == 6
    monkeypatch.setattr(dead_letters, "replace_files", real)
    assert offsets(there) == [42]
    assert there.weir("dead-letters discard clicks --yes").code == 0
    there.topics.rows["clicks", 0] += clicks(45, 5)
    assert there.run("programs:app").code == 0
    assert offsets(there) == [49]
    assert pl.read_delta(str(there.warehouse / "clicks" / "_dead_letters")).height == 1


def test_letters_are_discarded_once_their_table_is_not_append_only(there):
    table = DeltaTable(there.warehouse / "clicks" / "_dead_letters")
    table.alter.set_table_properties({"delta.appendOnly": "true"}, raise_if_not_exists=False)
    refused = there.weir("dead-letters discard clicks --yes")
    assert refused.code == 1
    assert "_dead_letters is append-only (delta.appendOnly)" in refused.text
    assert len(offsets(there)) == 7
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    assert there.weir("dead-letters discard clicks --yes").code == 0
    assert offsets(there) == []


def test_an_unknown_id_is_found_in_the_list(there):
    for command in ("show clicks x", "discard clicks x --yes"):
        answer = there.weir(f"dead-letters {command}")
        assert answer.code == 1
        assert "clicks has no dead letter 'x'" in answer.text
    (command,) = answer.commands
    assert there.weir(command).code == 0
    assert len(offsets(there)) == 7


def test_letters_are_replayed_beside_a_driver_of_the_corrected_program_each_once(there):
    refused = there.weir("dead-letters replay clicks")
    assert refused.code == 1
    assert "clicks is not running" in refused.text
    program = there.has("app", corrected())
    (seventh,) = letters_of(there).filter(offset=14)["id"]
    commands = ("replay clicks", f"replay clicks {seventh}", "list clicks", "replay clicks x", "list clicks --json")
    with there.typing_beside(*(f"dead-letters {each}" for each in commands), "stop clicks") as codes:
        answer = there.weir(f"run {program}")
    assert codes == [1, 1, 0, 1, 0, 0]
    assert "8 of 8 dead letters; 1 waits" in answer.text
    assert "dead letters so far: 8 " in there.weir("status clicks").text
    assert "clicks: 6 dead letters processed; 1 failed again; `weir dead-letters list clicks` shows why" in answer.text
    letters = letters_of(there)
    assert letters["replayed"].value_counts().filter(replayed="processed")["count"].to_list() == [6]
    newest = read_rows(there.warehouse / "clicks" / "users").sort("_epoch", "_seq").unique("user", keep="last")
    counted = Counter(f"user-{number % 20}" for number in range(40) if number != 5)
    assert dict(newest.select("user", "n").iter_rows()) == counted
    (waiting,) = letters.filter(pl.col("replayed").is_null())["id"]
    assert there.weir(f"dead-letters discard clicks {waiting} --yes").code == 0
    with there.typing_beside("dead-letters replay clicks", "stop clicks"):
        assert "clicks: no dead letter waits" in there.weir(f"run {program}").text
    assert "deleted 7 dead letters" in there.weir("dead-letters discard clicks --yes").text
    assert offsets(there) == []


def test_more_letters_than_a_request_takes_wait_for_the_next_one(there, monkeypatch, capsys):
    monkeypatch.setattr(replays, "MOST", 4)
    program = there.has("app", corrected())
    with there.typing_beside("dead-letters replay clicks", "dead-letters replay clicks", "stop clicks") as codes:
        text = there.weir(f"run {program}").text
    assert codes == [1, 1, 0]
    again = "clicks: 3 dead letters processed; 1 failed again; `weir dead-letters list clicks` shows why"
    assert text.count(again) == 2  # the one that fails waits again
    assert text.count(f"{again}; 3 more wait; `weir dead-letters replay clicks` takes the next ones") == 1


def test_letters_of_a_paused_application_follow_when_it_goes_on(there, monkeypatch, capsys):
    monkeypatch.setattr(dead_letters, "ANSWER_LIMIT_S", 0.0)
    program = there.has("app", corrected())
    commands = ("pause clicks", "dead-letters replay clicks", "status clicks", "resume clicks", "commit clicks")
    with there.typing_beside(*commands, "stop clicks") as codes:
        text = there.weir(f"run {program}").text
    assert codes == [0, 1, 0, 0, 0, 0]
    said = capsys.readouterr().err + text
    assert "has replayed 0 of 7 dead letters so far; `weir status clicks` shows" in " ".join(said.split())
    assert letters_of(there)["replayed"].null_count() == 1
