#!/usr/bin/env bash
# Walk the first ten minutes of three users (tests/journeys): an empty folder, a new environment, the wheel with one extra.
# Each has to end well, with the right answer, within a minute of processor time after the installation. Names of
# journeys as arguments choose among them; PYTHON=python3.12 before the command chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TIMEFORMAT=%0U

"${PYTHON:-python3}" -m venv "$work/build"
"$work/build/bin/python" -m pip --quiet --disable-pip-version-check wheel --no-deps --wheel-dir "$work" .
wheel=$(echo "$work"/klover-*.whl)

walk() {
  local journey=$1 extra=$2 seconds
  "${PYTHON:-python3}" -m venv "$work/$extra"
  PATH=$work/$extra/bin:$PATH
  python -m pip --quiet --disable-pip-version-check install --constraint "$root/constraints.txt" "$wheel[$extra]"
  mkdir "$work/$journey"
  cd "$work/$journey"
  cp "$root/tests/journeys/$journey"* .
  local command=(python "$journey.py")
  [ -f "$journey.py" ] || command=(bash "$journey.sh")
  seconds=$({ time XDG_CACHE_HOME=$work/cache "${command[@]}" >log 2>&1; } 2>&1) || { cat log; exit 1; }
  echo "$journey, with klover[$extra]: $seconds s"
  [ "$seconds" -lt 60 ]
}

for journey in ${*:-pymc_model black_box command_line}; do
  case $journey in
    pymc_model) (walk pymc_model pymc) ;;
    black_box) (walk black_box plots) ;;
    command_line) (walk command_line numpyro) ;;
    *) echo "no journey $journey in tests/journeys" >&2; exit 2 ;;
  esac
done
