"""How many blocks of memory Python asks for: its allocators are counted by ``allocations.c``, which any C compiler
builds. Objects that Python takes from its lists of free ones are not among them, nor is what polars has."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
DOMAINS = (1, 2)
"""``PYMEM_DOMAIN_MEM`` and ``PYMEM_DOMAIN_OBJ``."""


class _Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")]


class Allocations:
    """Counts them; the library is built into ``folder``."""

    def __init__(self, folder: Path) -> None:
        built = folder / "allocations.so"
        compiler = shutil.which("cc") or "gcc"
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", SOURCE, "-o", built], check=True)
        self._library = ctypes.CDLL(str(built))
        self._count = ctypes.c_ulonglong.in_dll(self._library, "allocations")

    def during(self, work: Callable[[], object]) -> int:
        """How many blocks are asked for while ``work`` runs; garbage in cycles is not looked for meanwhile."""
        found = [_Allocator() for _ in DOMAINS]
        for domain, allocator in zip(DOMAINS, found, strict=True):
            ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
        counted = [_Allocator() for _ in DOMAINS]
        for allocator, in_its_place in zip(found, counted, strict=True):
            self._library.counting(ctypes.byref(allocator), ctypes.byref(in_its_place))
        gc.collect()
        gc.disable()
        self._set(counted)
        before = self._count.value
        try:
            work()
            return int(self._count.value - before)
        finally:
            self._set(found)
            gc.enable()

    def _set(self, allocators: list[_Allocator]) -> None:
        for domain, allocator in zip(DOMAINS, allocators, strict=True):
            ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(allocator))
