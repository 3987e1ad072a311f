"""Commands that people type as ``/name`` in a session, and the ones that the host brings."""
