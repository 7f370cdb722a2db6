#!/usr/bin/env bash
# Sets up the environment in .venv: Python packages exactly as locked, this project, the Java jars. Stamps mark finished
# steps, which are skipped, so that a second run takes well under a second. `make setup` calls it; `make test` calls it
# with --browser, for the tests that need one.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=.venv
say() { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }
is_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
fingerprint() { cat "$@" | sha256sum | cut -d' ' -f1; }
is_done() { [ "$(cat "$VENV/.setup-$1" 2>/dev/null || true)" = "$2" ]; }
mark() { printf '%s' "$2" >"$VENV/.setup-$1"; }

apt_updated=
install_first() { # the first of the packages that the distribution has
    if [ -z "$apt_updated" ]; then
        apt-get update -qq >&2 || say "apt-get update failed; using the existing package lists"
        apt_updated=yes
    fi
    local package
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            say "installing $package"
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2 && return 0
        fi
    done
    return 1
}

find_python() { # Python 3.11 or newer, plain python3 first
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

java_version() { # the major version, or 0
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    { "$java" -version 2>&1 || true; } | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 | grep . || echo 0
}

if [ "$(java_version)" -lt 17 ]; then
    is_root || fail "Java 17 or newer is needed: install a headless JDK, for instance openjdk-17-jdk-headless"
    install_first openjdk-17-jdk-headless openjdk-21-jdk-headless default-jdk-headless ||
        fail "apt could not install a JDK: install a headless JDK 17 or newer, then run make setup again"
fi

if [ ! -x "$VENV/bin/python" ]; then
    if ! python=$(find_python); then
        is_root && install_first python3 || true
        python=$(find_python) || fail "Python 3.11 or newer is needed: install it, then run make setup again"
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        is_root || fail "Python's venv module is missing: install python$version-venv, then run make setup again"
        install_first "python$version-venv" python3-venv || fail "apt could not install python$version-venv"
    fi
    say "creating $VENV with $("$python" --version)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
fi

pip=("$VENV/bin/python" -m pip --disable-pip-version-check --quiet)
packages=$(fingerprint requirements.lock)
if ! is_done packages "$packages"; then
    say "installing the locked Python packages (a minute or two the first time)"
    # PySpark comes as source: setuptools builds it, from the same lock. uv is many times quicker than pip with a
    # warm cache; if it cannot reach the packages (behind a mirror that only pip is configured for), pip does the same.
    tools=$(mktemp)
    trap 'rm -f "$tools"' EXIT
    awk '/^[a-z]/ {on = /^(setuptools|uv)==/} on {print}' requirements.lock >"$tools"
    "${pip[@]}" install --no-deps --require-hashes -r "$tools"
    exactly=(install --quiet --no-deps --require-hashes --no-build-isolation -r requirements.lock)
    "$VENV/bin/uv" pip "${exactly[@]}" --python "$VENV/bin/python" || "${pip[@]}" "${exactly[@]}"
    mark packages "$packages"
fi

project=$(fingerprint pyproject.toml setup.py infra/kafka/_*.c)-$PWD
if ! is_done project "$project"; then
    say "installing Weir itself"
    if ! command -v cc >/dev/null && ! command -v gcc >/dev/null; then
        is_root && install_first gcc && install_first libc6-dev || fail "a C compiler is needed: install gcc, then run make setup again"
    fi
    "${pip[@]}" uninstall --yes weir 2>/dev/null # left by an earlier version, which had this name
    "${pip[@]}" install --no-deps --no-build-isolation --editable .
    mark project "$project"
fi

if ! is_done jars "$(fingerprint infra/jars.py)"; then
    say "fetching the Java jars (under a minute the first time)"
    "$VENV/bin/python" -m weir.infra.jars >&2
    mark jars "$(fingerprint infra/jars.py)"
fi

classes=$(fingerprint requirements.lock infra/{class_archives,jars,spark/session,kafka/supervisor}.py)-$(java_version)
if ! is_done classes "$classes"; then
    say "archiving the classes of Spark and Kafka, so that they start sooner (twenty seconds, once)"
    "$VENV/bin/python" -m weir.infra.class_archives >&2
    mark classes "$classes"
fi

if [ "${1:-}" = --browser ] && ! command -v chromium >/dev/null; then
    is_root && install_first chromium || say "no Chromium: tests in a browser are skipped; install it to run them"
fi
