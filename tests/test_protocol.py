"""docs/protocol.md and the code agree: citations resolve, rules name code and tests that exist, steps are the same.

What those tests prove is not checked here, only that each of them, and all code named there, exists.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE, BACKFILL_PAGE = "docs/protocol.md", "docs/backfill.md"
PROCEDURES = ("A commit", "A restore", "A swap", "A compaction", "A refresh")
FOLDERS = ("state", "pipelines", "infra", "orchestration", "bench", "tests", "tools", "docs")
WITH_STEPS = ("state", "pipelines")

NUMBERS = r"(\d+(?:(?:,|\s+and|\s+to|,\s+and)\s+\d+)*)"
CITATIONS = {PAGE: re.compile(rf"PROTOCOL\s+{NUMBERS}"), BACKFILL_PAGE: re.compile(rf"docs/backfill\.md,?\s+{NUMBERS}")}
LINK = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)")
STEP_COMMENT = re.compile(r"# (\d+)\. (.+?)(?::|$)")


@dataclass(frozen=True)
class Name:
    """A function, class, method or constant, and the file that defines it."""

    path: str
    name: str


@dataclass(frozen=True)
class Item:
    """A numbered entry of a list: a rule, or a step."""

    number: int
    title: str
    names: tuple[Name, ...]


@dataclass(frozen=True)
class Row:
    """What the page's tables say of a rule."""

    failure: str
    code: tuple[Name, ...]
    tests: tuple[Name, ...]


@dataclass
class Page:
    """What was read of a page."""

    sections: dict[str, list[Item]] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    """By rule, for example ``14`` or ``Backfill 7``."""

    @property
    def built(self) -> list[int]:
        return [rule.number for rule in self.sections["The rules"]]

    @property
    def not_built(self) -> list[int]:
        return [rule.number for rule in self.sections["Not built yet"]]


def read_page(text: str) -> Page:
    page = Page()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        items = re.findall(r"^(\d+)\. \*\*(.+?)\*\*(.*?)(?=^\S|\Z)", body, re.MULTILINE | re.DOTALL)
        page.sections[heading] = [
            Item(int(number), " ".join(title.split()).rstrip("."), names_in(rest)) for number, title, rest in items
        ]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"(Backfill )?\d+", cells[0]):
            assert cells[0] not in page.rows, f"rule {cells[0]} has two rows"
            page.rows[cells[0]] = Row(cells[1], names_in(cells[2]), names_in(cells[3]))
    return page


def names_in(text: str) -> tuple[Name, ...]:
    return tuple(Name(path, name) for name, path in LINK.findall(text))


def cited(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Line and rule of each citation; ``5 to 7 and 9`` is four of them."""
    for match in pattern.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        for first, last in re.findall(r"(\d+)(?:\s+to\s+(\d+))?", match[1]):
            yield from ((line, number) for number in range(int(first), int(last or first) + 1))


def texts() -> Iterator[tuple[str, str]]:
    """Path and content of every file that may cite a rule, this one aside."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    for path in (*ROOT.glob("*.md"), *found):
        if path.suffix in (".py", ".md", ".c", ".sh") and path != ROOT / "tests" / "test_protocol.py":
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def defined_in(source: str) -> set[str]:
    """Qualified names of the functions, classes, methods and constants of a module."""
    found = set[str]()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    visit(ast.parse(source).body, "")
    return found


@cache
def definitions(path: Path) -> set[str]:
    return defined_in(path.read_text(encoding="utf-8")) if path.is_file() else set()


def missing(names: tuple[Name, ...], root: Path = ROOT) -> list[str]:
    """Those of ``names`` that do not exist, each with the nearest names."""
    problems = []
    for wanted in names:
        known = definitions(root / wanted.path)
        if not known:
            problems.append(f"there is no {wanted.path}, which should define {wanted.name}")
        elif wanted.name not in known:
            nearest = get_close_matches(wanted.name, known, 2, 0.5)
            problems.append(f"{wanted.path} does not define {wanted.name}; nearest: {', '.join(nearest) or 'nothing'}")
    return problems


def steps_in(path: str, source: str) -> Iterator[tuple[Name, int, str]]:
    """Function, number and title of each numbered comment, in the order of lines."""
    functions: list[tuple[int, int, str]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                if isinstance(child, ast.FunctionDef):
                    functions.append((child.lineno, child.end_lineno or child.lineno, prefix + child.name))
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(source), "")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        match = STEP_COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
        if match is not None:
            around = [name for first, last, name in functions if first <= token.start[0] <= last]
            yield Name(path, around[-1] if around else "<module>"), int(match[1]), match[2]


THE_PAGE = read_page((ROOT / PAGE).read_text(encoding="utf-8"))
BACKFILL_RULES = [
    int(number)
    for number in re.findall(
        r"^(\d+)\. ", (ROOT / BACKFILL_PAGE).read_text().partition("\n## Rules\n")[2], re.MULTILINE
    )
]
RULES = {PAGE: {*THE_PAGE.built, *THE_PAGE.not_built}, BACKFILL_PAGE: set(BACKFILL_RULES)}
CITING = {
    (path, page): citations
    for path, text in texts()
    for page, pattern in CITATIONS.items()
    if (citations := list(cited(text, pattern)))
}
ENTRIES = [*map(str, THE_PAGE.built), *(f"Backfill {number}" for number in BACKFILL_RULES)]


@pytest.mark.parametrize(("path", "page"), CITING)
def test_what_is_cited_is_a_rule_of_the_page(path, page):
    unknown = [f"{path}:{line} cites rule {number}" for line, number in CITING[path, page] if number not in RULES[page]]
    assert not unknown, f"{page} has no such rule"


def test_citations_were_found():
    assert sum(map(len, CITING.values())) > 70
    assert {page for _, page in CITING} == set(CITATIONS)


def test_no_page_is_cited_that_the_repository_does_not_have():
    found = [
        f"{path}:{line}"
        for path, text in texts()
        for line, content in enumerate(text.splitlines(), 1)
        if re.search(r"\bDESIGN(\.md|\s+\d)", content)
    ]
    assert found == []


def test_every_rule_has_one_number_and_is_either_built_or_not():
    assert sorted(THE_PAGE.built + THE_PAGE.not_built) == list(range(1, 44))
    assert list(range(1, len(BACKFILL_RULES) + 1)) == BACKFILL_RULES
    assert list(THE_PAGE.rows) == ENTRIES, "a row for each rule that is built, in order, and none for others"


def test_numbers_are_those_that_a_reader_sees():
    """Markdown counts on from the number of a list's first entry, whatever numbers the others have."""
    for part in re.split(r"^#+ ", (ROOT / PAGE).read_text(encoding="utf-8"), flags=re.MULTILINE):
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", part, re.MULTILINE)]
        assert numbers == list(range(min(numbers, default=0), max(numbers, default=-1) + 1)), part[:40]


@pytest.mark.parametrize("rule", ENTRIES)
def test_a_rule_names_a_failure_and_code_and_tests_that_exist(rule):
    row = THE_PAGE.rows[rule]
    assert len(row.failure) > 20
    assert row.code
    assert row.tests
    assert not [name for name in row.code if name.path.startswith("tests/")]
    assert all(re.match(r"tests/.*/test_\w+\.py:test_", f"{name.path}:{name.name}") for name in row.tests)
    assert missing(row.code + row.tests) == []


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_steps_are_numbered_from_one_and_name_code_that_exists(procedure):
    steps = THE_PAGE.sections[procedure]
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.names for step in steps)
    assert missing(tuple(name for step in steps for name in step.names)) == []


def test_the_code_numbers_its_steps_as_the_page_does():
    wanted = {
        (name, step.number, step.title)
        for procedure in PROCEDURES
        for step in THE_PAGE.sections[procedure]
        for name in step.names
    }
    found = [
        step
        for path, text in texts()
        if path.split("/")[0] in WITH_STEPS and path.endswith(".py")
        for step in steps_in(path, text)
    ]
    assert set(found) - wanted == set(), "numbered in the code and not on the page"
    assert wanted - set(found) == set(), "on the page and not numbered in the code"
    for function in {name for name, _, _ in found}:
        numbers = [number for name, number, _ in found if name == function]
        assert numbers == sorted(set(numbers)), function


SAMPLE = """# Sample
## A commit
1. **The pivot.** One row ([`Committer.commit`](../state/x.py)
   and [`commit`](../state/y.py)).
2. **Settled:
   twice.** No link.

## The rules
### Identity
3. **Fencing.** Text
   that goes on.
12. **Order.** More.

| rule | the failure it answers | the code that keeps it | the test that fails when it is broken |
| --- | --- | --- | --- |
| 3 | Two drivers | [`A.b`](../state/x.py) | [`test_c`](../tests/test_x.py), [`test_d`](../tests/test_x.py) |
| Backfill 2 | One | [`A`](../state/x.py) | [`test_c`](../tests/test_x.py) |
| before 4 | this row | is not | of a rule |

## Not built yet
24. **Kafka.** Later.
"""


def test_a_page_is_read_with_its_steps_rules_and_rows():
    page = read_page(SAMPLE)
    assert page.sections["A commit"] == [
        Item(1, "The pivot", (Name("state/x.py", "Committer.commit"), Name("state/y.py", "commit"))),
        Item(2, "Settled: twice", ()),
    ]
    assert (page.built, page.not_built) == ([3, 12], [24])
    assert set(page.rows) == {"3", "Backfill 2"}
    assert page.rows["3"] == Row(
        "Two drivers",
        (Name("state/x.py", "A.b"),),
        (Name("tests/test_x.py", "test_c"), Name("tests/test_x.py", "test_d")),
    )


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("by PROTOCOL 3.", [3]),
        ("PROTOCOL 5 to 7 and 17 to 19", [5, 6, 7, 17, 18, 19]),
        ("PROTOCOL 2, 3 and 12: the law of 99 things", [2, 3, 12]),
        ("PROTOCOL 20,\n21", [20, 21]),
        ("a protocol of 7", []),
    ],
)
def test_citations_are_read_as_they_are_written(text, rules):
    assert [number for _, number in cited(text, CITATIONS[PAGE])] == rules


def test_citations_of_the_backfill_page_are_read_with_and_without_a_comma():
    text = "(docs/backfill.md, 2, 3)\n docs/backfill.md 12 to 14; docs/backfill.md"
    assert list(cited(text, CITATIONS[BACKFILL_PAGE])) == [(1, 2), (1, 3), (2, 12), (2, 13), (2, 14)]


def test_what_does_not_exist_is_named_with_what_comes_nearest(tmp_path):
    (tmp_path / "x.py").write_text("LIMIT = 3\nclass Store:\n    size: int = 0\n    def settle(self):\n        pass\n")
    known = (Name("x.py", "LIMIT"), Name("x.py", "Store"), Name("x.py", "Store.settle"), Name("x.py", "Store.size"))
    assert missing(known, tmp_path) == []
    assert missing((Name("x.py", "Store.setle"), Name("y.py", "f")), tmp_path) == [
        "x.py does not define Store.setle; nearest: Store.settle, Store.size",
        "there is no y.py, which should define f",
    ]


def test_numbered_comments_are_found_with_the_function_around_them():
    source = (
        "class A:\n    def b(self):\n        # 1. The pivot: why\n        x = '# 2. No comment'\n"
        "        def inner():\n            pass  # 3. Inside\n        return x  # in 4. steps\n"
    )
    assert list(steps_in("x.py", source)) == [
        (Name("x.py", "A.b"), 1, "The pivot"),
        (Name("x.py", "A.b.inner"), 3, "Inside"),
    ]
