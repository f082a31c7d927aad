"""How Sphinx makes the site: `sphinx-build -W docs docs/_build`, or without running the gallery, `-D plot_gallery=0`.

Nothing is fetched, neither when it is built nor when it is read.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning

import dpdist

project = "dpdist"
author = "The dpdist developers"
release = version = dpdist.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "examples", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5", "gallery/*.json"]
# What people write of types is text ("a whole number of at least 1"); links are made where a name is marked as one.
nitpicky = False
suppress_warnings = ["config.cache"]  # the order of gallery pages is a class

html_theme = "furo"
html_title = "dpdist"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "groupwise"
autodoc_typehints = "none"
autodoc_inherit_docstrings = True
numpydoc_show_class_members = False
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("matplotlib",),
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,  # its page fetches scripts from elsewhere
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,
    "abort_on_example_error": True,
    "matplotlib_animations": False,
}

# One thread, as workers have: what examples print is the same on every machine.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# Examples stop early on purpose, to be quick.
warnings.simplefilter("ignore", ConvergenceWarning)


def leave_out(app: Any, what: str, name: str, obj: object, skip: bool, options: Any) -> bool | None:
    """Leave out methods that estimators have for scikit-learn's and the package's own use."""
    inner = {"adopt", "follow", "manner", "prepare", "spec", "view", "get_metadata_routing", "set_output"}
    return True if name in inner or (name.startswith("set_") and name.endswith("_request")) else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", leave_out)
