#!/usr/bin/env bash
# Build the sdist and, from it, the wheel, look at what they hold, and install both as a user would: the core in an
# environment of its own, where the README's first lines and the command have to work, and then the extras, beside the
# libraries that .venv has.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
root=$PWD
python=$root/.venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --outdir "$work/dist" . >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
wheel=$(echo "$work"/dist/*.whl)
sdist=$(echo "$work"/dist/*.tar.gz)
"$python" -m twine check --strict "$wheel" "$sdist" >"$work/twine.log" || { cat "$work/twine.log"; exit 1; }
"$python" scripts/check_contents.py "$wheel" "$sdist"
"$python" -m pip --quiet --disable-pip-version-check install --no-deps --target "$work/site" "$wheel"
"$python" -m venv "$work/core"
awk '/^```python/ {inside = 1; next} /^```/ {if (inside) exit} inside' README.md >"$work/readme.py"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/klover/base/version.py)
cd "$work"
PATH=$work/core/bin:$PATH

install() { python -m pip --quiet --disable-pip-version-check install --constraint "$root/constraints.txt" "$@"; }

check() {
  [ "$(klover --version)" = "klover $version" ]
  [ "$(python -m klover --version)" = "klover $version" ]
  python -c 'import importlib.resources, klover; assert (importlib.resources.files(klover) / "py.typed").is_file()'
  echo "$(basename "$1"): klover $version is installed and imports."
}

install "$wheel" && check "$wheel"
install "$sdist" --force-reinstall --no-deps && check "$sdist"
python readme.py >readme.log
echo "The README's first lines work with the core alone."
XDG_CACHE_HOME=$work/cache klover demo --out demo >demo.log
grep -q "klover\[plots\]" demo.log
echo "klover demo works with the core alone, and names the extra of its figure."
PYTHONPATH=$work/site "$python" "$root/scripts/check_extras.py" "$work/site"
