"""The screen of ``weir top``: two tables of one report, which is asked for again and again, and keys to sort them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.widgets import DataTable, Footer, Static

from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.top import ApplicationActivity, OperatorActivity, TaskActivity
from weir.pipelines.tasks.run_metrics import ACTIVITIES
from weir.state.printable import printable

Row = TypeVar("Row")
NARROW = 100
"""Below so many columns only what matters most is shown."""
SHARES_OF_RUN = (*map(str, ACTIVITIES), "commit", "rest")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table."""

    name: str
    text: Callable[[Row], str]
    is_narrow: bool = False
    """Whether narrow terminals show it, too."""
    is_number: bool = True


def count(value: float | None) -> str:
    """``12.3k``: three digits, and one letter from a thousand on; ``-`` for None."""
    if value is None:
        return "-"
    for letter in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            has_tenths = abs(value) < 99.95 if letter else value % 1 and abs(value) < 9.95
            return f"{value:.{1 if has_tenths else 0}f}{letter}"
        value /= 1000
    return f"{value:.0f}P"


def per_cent(share: float) -> str:
    """``12``, or a dot where it is nothing."""
    return "·" if share < 0.0005 else f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"


def _share_of(activity: str) -> Callable[[TaskActivity], str]:
    return lambda task: per_cent(task.shares[activity])


TASK_COLUMNS: Sequence[Column[TaskActivity]] = (
    Column("task", lambda task: task.task, True, False),
    Column("status", lambda task: task.status, True, False),
    Column("slot", lambda task: str(task.slot)),
    Column("records/s", lambda task: count(task.records_per_s), True),
    Column("lag", lambda task: count(task.lag), True),
    Column("busy%", lambda task: per_cent(task.busy), True),
    *(Column(f"{activity}%", _share_of(activity)) for activity in map(str, ACTIVITIES)),
    Column("rows", lambda task: count(task.rows)),
    Column("bytes", lambda task: count(task.used_bytes)),
    Column("note", lambda task: printable(task.note), False, False),
)
OPERATOR_COLUMNS: Sequence[Column[OperatorActivity]] = (
    Column("operator", lambda operator: printable(operator.operator), True, False),
    Column("rows/s", lambda operator: count(operator.rows_per_s), True),
    Column("busy%", lambda operator: per_cent(operator.busy), True),
)
RATE, LAG, BUSY, NAME = "rate", "lag", "busy", "name"


def sorted_tasks(tasks: Sequence[TaskActivity], by: str, *, turned: bool) -> list[TaskActivity]:
    """By name upwards, by numbers the greatest first; ``turned`` the other way round."""
    keys: Mapping[str, Callable[[TaskActivity], float]] = {
        RATE: lambda task: task.records_per_s or 0.0,
        LAG: lambda task: task.lag,
        BUSY: lambda task: task.busy,
    }
    named = sorted(tasks, key=lambda task: tuple(map(int, task.task.split("_"))), reverse=turned and by == NAME)
    return named if by == NAME else sorted(named, key=keys[by], reverse=not turned)


def sorted_operators(operators: Sequence[OperatorActivity], by: str, *, turned: bool) -> list[OperatorActivity]:
    """The same; operators have no lag, and are sorted by name then."""
    keys: Mapping[str, Callable[[OperatorActivity], float]] = {
        RATE: lambda operator: operator.rows_per_s,
        BUSY: lambda operator: operator.busy,
    }
    named = sorted(operators, key=lambda operator: operator.operator, reverse=turned and by not in keys)
    return sorted(named, key=keys[by], reverse=not turned) if by in keys else named


def heading(report: ApplicationActivity, gone: str = "") -> str:
    """Two lines: the run as a whole, and where the time of its slots goes on average."""
    slots = max(1, len({task.slot for task in report.tasks}))
    shares = {name: sum(task.shares[name] for task in report.tasks) / slots for name in map(str, ACTIVITIES)}
    shares["commit"] = report.commit
    shares["rest"] = max(0.0, 1 - sum(shares.values()))
    waits = f"  {printable(report.waits_for)}" if report.waits_for else ""
    return "\n".join(
        (
            f"{report.application}  {gone or report.state}  {count(report.records_per_s)} records/s  "
            f"lag {count(report.lag)}  {report.commits_per_s:.2f} commits/s{waits}",
            "  ".join(f"{name} {per_cent(shares[name])}" for name in SHARES_OF_RUN) + " %",
        )
    )


class TopScreen(App[None]):
    """Shows ``report``, and what ``next_report`` says every ``every_s``; an ``OperationError`` of that is shown, and
    the tables stay as they were."""

    CSS = """
    #heading { height: auto; padding: 0 1; }
    #tasks { height: 1fr; }
    #operators { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False),
        (RATE[0], f"sort('{RATE}')", "by rate"),
        (LAG[0], f"sort('{LAG}')", "by lag"),
        (BUSY[0], f"sort('{BUSY}')", "by busy"),
        (NAME[0], f"sort('{NAME}')", "by name"),
        ("t", "turn('tasks')", "tasks"),
        ("o", "turn('operators')", "operators"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, report: ApplicationActivity, next_report: Callable[[], ApplicationActivity], every_s: float
    ) -> None:
        super().__init__()
        self._report, self._next_report, self._every_s = report, next_report, every_s
        self._by, self._turned, self._gone, self._width = NAME, False, "", NARROW

    def compose(self) -> ComposeResult:
        yield Static(id="heading", markup=False)
        with Vertical():
            yield DataTable[str](id="tasks", cursor_type="row", zebra_stripes=True)
            yield DataTable[str](id="operators", cursor_type="row", zebra_stripes=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._show()
        self.set_interval(self._every_s, self._look)

    def on_resize(self, event: Resize) -> None:
        self._width = event.size.width
        self._show()

    def action_sort(self, by: str) -> None:
        """Sort by this; once more, the other way round."""
        self._turned = not self._turned if by == self._by else False
        self._by = by
        self._show()

    def action_turn(self, table: str) -> None:
        """Show or hide a table."""
        found = self.query_one(f"#{table}")
        found.display = not found.display

    def _look(self) -> None:
        try:
            self._report, self._gone = self._next_report(), ""
        except OperationError as error:
            self._gone = str(error)
        self._show()

    def _show(self) -> None:
        self.query_one("#heading", Static).update(heading(self._report, self._gone))
        tasks = sorted_tasks(self._report.tasks, self._by, turned=self._turned)
        operators = sorted_operators(self._report.operators, self._by, turned=self._turned)
        self._fill("#tasks", TASK_COLUMNS, tasks)
        self._fill("#operators", OPERATOR_COLUMNS, operators)

    def _fill(self, which: str, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> None:
        table = self.query_one(which, DataTable)
        shown = [column for column in columns if column.is_narrow or self._width >= NARROW]
        place, scrolled = table.cursor_row, table.scroll_y
        table.clear(columns=True)
        cells = [[column.text(row) for row in rows] for column in shown]
        for column, texts in zip(shown, cells, strict=True):
            width = max(map(len, (column.name, *texts)))
            label = column.name.rjust(width) if column.is_number else column.name
            table.add_column(label, width=width)
        for row in zip(*cells, strict=True):
            table.add_row(
                *(
                    text.rjust(max(map(len, (column.name, *texts)))) if column.is_number else text
                    for column, text, texts in zip(shown, row, cells, strict=True)
                )
            )
        table.move_cursor(row=place)
        table.scroll_to(y=scrolled, animate=False)
