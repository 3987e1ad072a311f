"""``hostctl``: the command line of the host. Importing this package costs nothing; commands load when they are run."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``hostctl`` and return its exit code: 0 success, 1 failure, 2 usage or configuration, 130 cancelled.

    The entry point of a process, whose signals, streams and end it sees to; ``app.run`` is the same without that.
    """
    from polyhost.cli.process import finish, prepare

    threads = prepare()
    from polyhost.cli.app import run

    return finish(run(arguments), threads)
