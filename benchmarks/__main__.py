"""``python -m benchmarks COMMAND``: every module with a ``main`` is a command, told by its docstring."""

import ast
import importlib
import pathlib
import sys


def commands() -> dict[str, str]:
    """Return the names of the commands and the first lines of their docstrings, without importing them."""
    found = {}
    for path in sorted(pathlib.Path(__file__).parent.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(part, ast.FunctionDef) and part.name == "main" for part in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main() -> int:
    """Run the command that the arguments name; list all where they name none."""
    name, *rest = sys.argv[1:] or ["--help"]
    known = commands()
    if name in known:
        sys.argv = [f"python -m benchmarks {name}", *rest]
        importlib.import_module(f"benchmarks.{name}").main()
        return 0
    is_help = name in ("-h", "--help")
    print("usage: python -m benchmarks COMMAND ..." if is_help else f"There is no command {name}. There are:")
    print("\n".join(f"  {name:<15} {words}" for name, words in known.items()))
    return 0 if is_help else 2


if __name__ == "__main__":
    raise SystemExit(main())
