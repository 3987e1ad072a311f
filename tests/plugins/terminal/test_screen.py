"""What reaches the terminal, in particular what must not."""

from __future__ import annotations

import io

from polyhost_terminal.screen import Screen


def screen(*, styled: bool = False) -> tuple[Screen, io.StringIO]:
    stream = io.StringIO()
    return Screen(stream, styled=styled), stream


def test_control_characters_of_models_and_tools_are_shown_not_obeyed() -> None:
    view, stream = screen()
    view.stream("a\x1b[2Jb\rc\tok\n")
    view.tool_call("bash\x07", '{"command": "echo \\u001b]0;title\\u0007"}')
    view.tool_result("\x1b[31mred", is_error=False)
    view.arguments({"content": "x\x1b[0m\ny"})
    assert "\x1b" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    assert "\tok\n" in stream.getvalue()


def test_styles_only_where_asked_for() -> None:
    plain, plain_stream = screen()
    plain.line("x", "red")
    styled, styled_stream = screen(styled=True)
    styled.line("x", "red")
    assert plain_stream.getvalue() == "x\n"
    assert styled_stream.getvalue() == "\x1b[31mx\x1b[0m\n"


def test_lines_start_on_a_line_of_their_own() -> None:
    view, stream = screen()
    view.stream("half")
    view.line("whole")
    view.stream("tail")
    view.end_line()
    view.end_line()
    assert stream.getvalue() == "half\nwhole\ntail\n"


def test_every_argument_is_shown_in_full() -> None:
    view, stream = screen()
    view.arguments({"command": "rm -rf " + "x" * 500, "content": "one\ntwo"})
    shown = stream.getvalue()
    assert "x" * 500 in shown
    assert "one" in shown
    assert "two" in shown


def test_long_results_are_cut_with_a_count() -> None:
    view, stream = screen()
    view.tool_result("\n".join(str(n) for n in range(100)), is_error=False)
    assert "… 88 more lines …" in stream.getvalue()
    assert stream.getvalue().endswith("  99\n")


def test_a_call_with_broken_arguments_is_still_shown() -> None:
    view, stream = screen()
    view.tool_call("read", "{not json")
    view.tool_call("read", "[1]")
    assert stream.getvalue().count("● read") == 2
