"""Sphinx configuration: Markdown sources, no theme of our own, warnings are errors in the test command."""

project = "polyhost"
author = "The polyhost developers"
copyright = "2026, The polyhost developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "A plugin-based host for coding agents"}
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
nitpicky = False
