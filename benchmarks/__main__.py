"""``python -m benchmarks COMMAND``: every module or folder with a ``main`` is a command, told by its docstring."""

import ast
import importlib
import pathlib
import sys


def commands() -> dict[str, str]:
    """Return the names of the commands and the first lines of their docstrings, without importing them."""
    found = {}
    folder = pathlib.Path(__file__).parent
    for path in sorted([*folder.glob("[a-z]*.py"), *folder.glob("*/__main__.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(part, ast.FunctionDef) and part.name == "main" for part in tree.body):
            name = path.parent.name if path.stem == "__main__" else path.stem
            found[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main() -> int:
    """Run the command that the arguments name; list all where they name none."""
    name, *rest = sys.argv[1:] or ["--help"]
    known = commands()
    if name in known:
        sys.argv = [f"python -m benchmarks {name}", *rest]
        is_folder = pathlib.Path(__file__).with_name(name).is_dir()
        importlib.import_module(f"benchmarks.{name}" + ".__main__" * is_folder).main()
        return 0
    is_help = name in ("-h", "--help")
    print("usage: python -m benchmarks COMMAND ..." if is_help else f"There is no command {name}. There are:")
    print("\n".join(f"  {name:<15} {words}" for name, words in known.items()))
    return 0 if is_help else 2


if __name__ == "__main__":
    raise SystemExit(main())
