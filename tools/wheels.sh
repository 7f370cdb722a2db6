#!/usr/bin/env bash
# Builds what is published into dist: the sdist, and one wheel each for x86_64 and aarch64 Linux with glibc 2.17 or newer.
# Zig's C compiler, from its Python package, builds both on any machine; other platforms build from the sdist.
set -euo pipefail
cd "$(dirname "$0")/.."
ZIG=ziglang==0.15.2
PYTHON=$PWD/.venv/bin/python
zig=$(mktemp -d)
trap 'rm -rf "$zig"' EXIT
.venv/bin/uv pip install --quiet --python "$PYTHON" --target "$zig" "$ZIG"
build() { .venv/bin/uv build --quiet --no-build-isolation --python "$PYTHON" --out-dir dist "$@"; }

rm -rf dist build
build --sdist
for machine in x86_64 aarch64; do
    rm -rf build
    export PYTHONPATH=$zig CC="$PYTHON -m ziglang cc -target $machine-linux-gnu.2.17" \
        ARCHFLAGS="" _PYTHON_HOST_PLATFORM="manylinux_2_17_$machine"
    build --wheel
done
ls dist/*.tar.gz dist/*.whl
