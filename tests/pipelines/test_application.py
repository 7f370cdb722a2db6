"""Settings of an application, and loading one by name."""

from datetime import timedelta

import pytest

from weir import Application, ApplicationLoadError, Bytes, StreamsBuilder, String, TopologyError, load_application


def builder():
    made = StreamsBuilder()
    made.stream("in", key=String(), value=Bytes()).to_delta("out")
    return made


def test_defaults_are_the_documented_ones():
    application = Application("a", builder())
    assert application.commit_interval == timedelta(seconds=1)
    assert (application.on_error, application.start, application.max_skew) == ("fail", "earliest", None)
    assert application.uncommitted_max_bytes == 64 << 20
    assert application.uncommitted_max_rollback == timedelta(milliseconds=500)
    assert application.topology is application.topology


@pytest.mark.parametrize(
    ("id", "settings", "message"),
    [
        ("_a", {}, "application id '_a'"),
        ("a/b", {}, "application id"),
        ("", {}, "application id"),
        ("a", {"commit_interval": timedelta(0)}, "commit_interval"),
        ("a", {"on_error": "ignore"}, "on_error"),
        ("a", {"start": "newest"}, "start"),
        ("a", {"max_skew": timedelta(seconds=-1)}, "max_skew"),
        ("a", {"max_task_idle": timedelta(seconds=-1)}, "max_task_idle.*None waits for nothing"),
        ("a", {"uncommitted_max_bytes": 0}, "uncommitted_max_bytes"),
        ("a", {"uncommitted_max_rollback": timedelta(0)}, "uncommitted_max_rollback.*None is no limit"),
    ],
)
def test_settings_that_make_no_sense_are_refused(id, settings, message):
    with pytest.raises(TopologyError, match=message):
        Application(id, builder(), **settings)


def table(call: str) -> str:
    """A program that makes a call on a table."""
    return (
        "from weir import Application, StreamsBuilder, String\nbuilder = StreamsBuilder()\n"
        "table = builder.table('in', key=String('k'), value=String('v'), store='s')\n"
        f"{call}\napp = Application('a', builder)"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flights", "write package.module:attribute"),
        ("made.broken", "write package.module:attribute"),
        ("made.good", "^'made.good' does not name an application; the module has made.good:app$"),
        ("made.two:", "^'made.two:' does not name an application; the module has made.two:app and made.two:other$"),
        ("a:", "write package.module:attribute"),
        ("./shop.py:app", "names a file; .* shop:app,"),
        ("shop.py:app", "module, as in shop:app,"),
        ("no_such_module_here:app", "no module 'no_such_module_here'"),
        ("made.nothing:app", "no module 'made.nothing'"),
        ("made.good:nope", "no 'nope'; it has app"),
        ("made.good:other", "is an int, not an Application"),
        ("made.empty:app", r"no 'app'; define it as Application\(...\)"),
        ("made.broken:app", "imports 'not_there_at_all'"),
        (
            "made.typo:app",
            r"'made.typo' cannot be loaded: .*typo.py, line 2: AttributeError: .*'of_size', it has "
            r"of_size_and_grace, of_size_with_no_grace; correct the program",
        ),
        (
            "made.java:app",
            r"java.py, line 3: AttributeError: 'KStream' object has no attribute 'groupByKey', it has "
            r"group_by_key, group_by; correct",
        ),
        (
            "made.table:app",
            r"'KTable' object has no attribute 'to_http', its stream has it: write .to_stream\(\).to_http\(...\); "
            "correct the program",
        ),
        ("made.own:app", r"line 1: AttributeError: mine; correct the program"),
        ("made.cut:app", r"'made.cut' cannot be loaded: SyntaxError: .*cut.py, line 1\); correct the program"),
    ],
)
def test_a_name_that_leads_nowhere_says_why(tmp_path, monkeypatch, name, message):
    package = tmp_path / "made"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "empty.py").write_text("")
    (package / "broken.py").write_text("import not_there_at_all")
    (package / "typo.py").write_text("from weir import TimeWindows\nTimeWindows.of_size(1)")
    (package / "java.py").write_text(
        "from weir import StreamsBuilder, String\nstream = StreamsBuilder().stream("
        "'in', key=String('k'), value=String('v'))\nstream.groupByKey()"
    )
    (package / "table.py").write_text(table("table.to_http('http://h', name='h')"))
    (package / "its_stream.py").write_text(table("table.to_stream().to_http('http://h', name='h')"))
    (package / "two.py").write_text("from made.good import app\nother = app")
    (package / "own.py").write_text("raise AttributeError('mine')")
    (package / "cut.py").write_text("app = (")
    (package / "good.py").write_text(
        "from tests.pipelines.test_application import builder\n"
        "from weir import Application\napp, other = Application('a', builder()), 3"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ApplicationLoadError, match=message):
        load_application(name)
    assert load_application("made.good:app").id == "a"
    assert load_application("made.its_stream:app").id == "a"
