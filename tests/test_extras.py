import importlib.util

import pytest

from klover import extras


@pytest.mark.parametrize(
    ("load", "library", "extra"),
    [
        (extras.pyplot, "matplotlib", "plots"),
        (extras.blackjax, "blackjax", "paper"),
        (extras.xarray, "xarray", "arviz"),
        (extras.arviz, "arviz", "arviz"),
        (extras.joblib, "joblib", "parallel"),
        (extras.httpstan, "httpstan", "stan"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, load, library, extra):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    if importlib.util.find_spec(library) is not None:
        assert load().__name__.startswith(library)
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError) as caught:
        load()
    assert f"{library}: pip install 'klover[{extra}]'" in caught.value.__notes__[0]
