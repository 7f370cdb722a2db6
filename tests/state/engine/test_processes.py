"""A process's mark is that of no other process, also once its id is used again."""

import os
import subprocess
import sys

from weir.state.engine.processes import is_alive, own_mark


def test_a_mark_is_alive_as_long_as_its_process():
    code = "from weir.state.engine.processes import own_mark; print(own_mark(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        mark = process.stdout.readline().strip()
        assert mark.startswith(f"{process.pid}.")
        assert is_alive(mark)
        process.communicate("\n")
    assert not is_alive(mark)


def test_a_mark_whose_process_id_is_used_again_is_dead():
    pid, _, started = own_mark().partition(".")
    assert is_alive(f"{pid}.{started}")
    assert not is_alive(f"{pid}.{int(started) - 1}")


def test_what_earlier_versions_marked_with_the_id_alone_is_read():
    assert is_alive(str(os.getpid()))
    assert not is_alive("5000001")  # above the kernel's highest process id
    assert not is_alive("")


def test_a_forked_process_has_a_mark_of_its_own():
    own_mark()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, own_mark().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as pipe:
        assert pipe.read().startswith(f"{child}.")
