#!/usr/bin/env bash
# Try klover with the oldest versions of its dependencies that pyproject.toml allows, or with the newest that there are:
#   scripts/check_versions.sh oldest|newest [PYTHON]
# The README's first lines have to work with the core alone, then its NumPyro model and some quick tests.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
extras="numpyro plots arviz"
tests="tests/base tests/importance tests/mixtures tests/targets/test_target.py tests/targets/adapters/test_numpyro.py"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${2:-python3}" -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
case ${1:-} in
  oldest) python scripts/floors.py $extras >"$work/versions" ;;
  newest) : >"$work/versions" ;;
  *) echo "usage: scripts/check_versions.sh oldest|newest [PYTHON]" >&2; exit 2 ;;
esac
install() { python -m pip --quiet --disable-pip-version-check install --constraint "$work/versions" "$@"; }

piece() { awk -v wanted="$1" '/^```python/ {number += 1; inside = 1; next} /^```/ {inside = 0} inside && number == wanted' README.md; }

install .
piece 1 >"$work/first.py"
piece 2 >"$work/second.py"
python "$work/first.py" >"$work/log" || { cat "$work/log"; exit 1; }
echo "$1: the README's first lines work with $(python -m pip list --format freeze | grep -E '^(jax|jaxtyping|numpy|optax)==' | paste -sd ' ')."
install ".[${extras// /,}]" pytest hypothesis beartype scipy scikit-learn
(cd "$work" && python second.py >"$work/log") || { cat "$work/log"; exit 1; }
echo "$1: its NumPyro model works with $(python -m pip list --format freeze | grep -E '^(arviz|numpyro|xarray)==' | paste -sd ' ')."
OPENBLAS_NUM_THREADS=1 python -m pytest -q $tests
