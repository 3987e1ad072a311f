"""Sessions: the append-only log of one conversation, the live ones of a host, and the stored ones on its disk.

* :class:`LiveSession`: one log in memory, made of encoded event lines; :class:`ChunkWriter` is its fast way in.
* :class:`LiveSessions`: the live sessions, their events on the bus, forks.
* :class:`JsonlStorage`: keeps live sessions written and opens stored ones.
* :class:`EventCatalogue`: the event types that this host knows.
"""

from __future__ import annotations

from polyhost.runtime.sessions.archive import InspectedSession
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.chunks import ChunkWriter
from polyhost.runtime.sessions.events import EventView
from polyhost.runtime.sessions.header import to_json as header_to_json
from polyhost.runtime.sessions.log import LiveSession
from polyhost.runtime.sessions.storage import JsonlStorage, PreparedSession
from polyhost.runtime.sessions.store import LiveSessions

__all__ = [
    "ChunkWriter",
    "EventCatalogue",
    "EventView",
    "InspectedSession",
    "JsonlStorage",
    "LiveSession",
    "LiveSessions",
    "PreparedSession",
    "header_to_json",
]
