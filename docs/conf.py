"""How the site is built: ``make docs`` runs Sphinx on this folder, offline, and every warning is an error."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE / "_build"
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "src")]

# Notebooks run in processes of their own, which take these over: double precision, and what was compiled is kept.
os.environ |= {
    "JAX_ENABLE_X64": "1",
    "JAX_COMPILATION_CACHE_DIR": str(BUILD / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    "MATPLOTLIBRC": str(HERE / "_extensions" / "matplotlibrc"),
    "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]),
    # The last one is said of notebooks that have no widgets.
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::DeprecationWarning,ignore:IProgress not found",
}

from klover.base.version import __version__  # noqa: E402  (found in src, by the path above)

project = "klover"
author = "klover developers"
release = version = __version__
language = "en"

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "checked_links",
    "mathematics",
    "modules_of_klover",
    "public_names",
]
exclude_patterns = ["_build", "_extensions"]

# Markdown, and notebooks in Markdown. A second build takes from the cache what has not changed.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "executed")
nb_execution_raise_on_error = True
nb_execution_timeout = 240
nb_merge_streams = True
nb_number_source_lines = False

# Types are in the signatures of the source; here a name and its meaning are enough.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
default_role = "any"
nitpicky = True
# Functions inside of modules have no page; their modules are listed in the tour.
nitpick_ignore_regex = [("py:func", r"klover\.\w+\.\w+\.\w+")]

html_theme = "furo"
html_title = f"klover {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_domain_indices = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f9f", "color-brand-content": "#1f5f9f"},
    "dark_css_variables": {"color-brand-primary": "#7fb8ee", "color-brand-content": "#7fb8ee"},
}
copybutton_exclude = ".linenos, .gp, .go"
