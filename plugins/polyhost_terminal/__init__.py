"""The terminal front end, ``hostctl run`` and ``hostctl sessions``: it owns the process, the turn, its cancellation."""
