"""What commands print: tables for people, JSON for programs. Colour only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from polyhost.config.errors import printable


def print_json(value: Any) -> None:
    """Indented JSON on stdout; in ASCII where the stream takes no UTF-8, which would break it otherwise."""
    import json

    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    click.echo(json.dumps(value, indent=2, ensure_ascii=plain))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, styles: dict[str, str] | None = None) -> None:
    """Aligned columns on stdout; control characters in cells are shown, not obeyed.

    :param styles: rich style by cell text, for words such as states.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(cell), style=(styles or {}).get(cell, "")) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip() if not console.is_terminal else line, color=sys.stdout.isatty())
