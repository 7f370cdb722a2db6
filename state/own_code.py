"""What counts as an error of code that the program brings: functions, processors, serdes, stores and sinks."""

from __future__ import annotations

import signal

from polars.exceptions import PanicException


def failures() -> tuple[type[BaseException], ...]:
    """What to catch around such code. ``sys.exit()`` in a function is an error for the record that it was called for:
    it must not end a worker, which would begin again and come to the same record. ``KeyboardInterrupt`` is one too,
    except where Ctrl-C raises it, as in tests of the program."""
    raised = (Exception, SystemExit, GeneratorExit, PanicException)
    is_of_terminal = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return raised if is_of_terminal else (*raised, KeyboardInterrupt)
