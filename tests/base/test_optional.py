import importlib.util

import pytest

from klover.base import optional


@pytest.mark.parametrize(
    ("load", "library", "extra"),
    [
        (optional.pyplot, "matplotlib", "plots"),
        (optional.blackjax, "blackjax", "paper"),
        (optional.xarray, "xarray", "arviz"),
        (optional.arviz, "arviz", "arviz"),
        (optional.pandas, "pandas", "arviz"),
        (optional.distributed, "distributed", "dask"),
        (optional.httpstan, "httpstan", "stan"),
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
