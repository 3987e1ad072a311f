"""Help for testing plugins and what is built on a host.

``pytest_plugin`` has the fixtures (active wherever polyhost is installed), ``scripted`` a model adapter that plays
scripts, ``mock_model`` a chat-completions server on loopback, ``sample`` a tiny repository with a failing test.
Nothing is imported here, since every pytest session loads this package.
"""
