"""The tool runtime: which tools an agent has (``registry``), what one call goes through (``pipeline``), and what acts
on every call (``timeouts``, ``repeat``, ``spill``). Tools themselves are plugins.
"""
