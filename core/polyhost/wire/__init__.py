"""Bytes and messages, without any I/O: JSON, newline-delimited frames, JSON-RPC 2.0.

* :mod:`polyhost.wire.json`: encode, decode, and the safety walk for foreign data; the only user of orjson.
* :mod:`polyhost.wire.lines`: the incremental, bounded line splitter.
* :mod:`polyhost.wire.jsonrpc`: classification, frame encoders, the table of pending requests.
* :mod:`polyhost.wire.dialects`: limits, and what protocols that share this code do differently, as data.
* :mod:`polyhost.wire.errors`: the errors all of these raise or report.

Everything here is synchronous and serves asyncio servers, blocking clients, tests and fuzzers alike. Carriers,
methods and handlers belong to the front ends. Nothing is imported here: take the module that you need.
"""
