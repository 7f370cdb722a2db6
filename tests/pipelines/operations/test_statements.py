"""SQL statements are told apart as people read them."""

from __future__ import annotations

import pytest

from weir.pipelines.operations.statements import statements


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("  ;\n;-- nothing\n;/* still\nnothing */", []),
        ("select 1", [("select 1", 1, False)]),
        (
            "select 1;\n\n select\n 2 ;select 3",
            [("select 1", 1, True), ("select\n 2", 3, True), ("select 3", 4, False)],
        ),
        (
            "select ';', \"a;b\", `c;d` -- e;f\n, 1; x",
            [("select ';', \"a;b\", `c;d` -- e;f\n, 1", 1, True), ("x", 2, False)],
        ),
        (r"select 'it\'s; one'; b", [(r"select 'it\'s; one'", 1, True), ("b", 1, False)]),
        ("-- first;\n/* second; */\nselect 1;", [("select 1", 3, True)]),
        ("select /* ; */ 1;", [("select /* ; */ 1", 1, True)]),
        ("select 'open; still", [("select 'open; still", 1, False)]),
        ("select /* open; still", [("select /* open; still", 1, False)]),
    ],
)
def test_a_semicolon_ends_a_statement_outside_of_texts_names_and_comments(text, found):
    assert [(each.text, each.line, each.is_ended) for each in statements(text)] == found
