from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.process import Collect, CollectedOutput
from polyhost.process.spills import SpillDirectory, sweep


@pytest.fixture
def spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpillDirectory]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = SpillDirectory()
    yield directory
    directory.remove()


def fed(mode: Collect, spills: SpillDirectory, *chunks: bytes) -> CollectedOutput:
    output = CollectedOutput(mode, spills)
    for chunk in chunks:
        output.feed(chunk)
    return output


@pytest.mark.contract("PROC-17")
@given(chunks=st.lists(st.binary(max_size=30)), limit=st.integers(1, 40), offset=st.integers(0, 200))
def test_the_tail_is_byte_exact_at_every_offset(chunks: list[bytes], limit: int, offset: int) -> None:
    whole = b"".join(chunks)
    output = fed(Collect(limit), SpillDirectory(), *chunks)
    oldest = max(0, len(whole) - limit)
    read = output.read_from(offset)
    assert read.data == whole[max(offset, oldest) :]
    assert read.next_offset == output.total_bytes == len(whole)
    assert read.lossy == (offset < oldest)
    assert output.read_from(offset) == read  # reading consumes nothing


def test_a_negative_offset_is_refused(spills: SpillDirectory) -> None:
    with pytest.raises(ValueError, match="offset"):
        fed(Collect(4), spills).read_from(-1)


@pytest.mark.contract("PROC-17", "DEF-6")
def test_a_stream_that_outgrows_memory_is_kept_whole_in_a_private_file(spills: SpillDirectory) -> None:
    output = fed(Collect(4, spill_bytes=100), spills, b"abc", b"defg", b"", b"h" * 20)
    assert output.read_from().spill_path is None  # not complete yet
    output.finish()
    path = output.read_from().spill_path
    assert path is not None
    assert Path(path).read_bytes() == b"abcdefg" + b"h" * 20
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


@pytest.mark.contract("DEF-6")
def test_spill_names_cannot_be_guessed_or_taken(spills: SpillDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    first, path = spills.create()
    os.close(first)
    monkeypatch.setattr("os.urandom", lambda _: bytes.fromhex(os.path.basename(path)))
    with pytest.raises(FileExistsError):
        spills.create()


@pytest.mark.contract("PROC-17")
def test_a_stream_that_fits_in_memory_makes_no_file(spills: SpillDirectory, tmp_path: Path) -> None:
    output = fed(Collect(4, spill_bytes=100), spills, b"ab", b"cd")
    output.finish()
    assert output.read_from().spill_path is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("PROC-17")
def test_a_spill_over_its_limit_is_deleted(spills: SpillDirectory, tmp_path: Path) -> None:
    output = fed(Collect(4, spill_bytes=10), spills, b"abcdefgh", b"ij")
    assert len([*tmp_path.glob("*/*")]) == 1
    output.feed(b"k")
    output.feed(b"l")
    output.finish()
    assert output.read_from().spill_path is None
    assert output.read_from().data == b"ijkl"
    assert [*tmp_path.glob("*/*")] == []


@pytest.mark.contract("PROC-17")
@pytest.mark.parametrize("call", ["write", "close"])
def test_a_spill_that_failed_is_not_promised(
    spills: SpillDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    output = fed(Collect(4, spill_bytes=100), spills, b"abcdefgh")
    real = getattr(os, call)

    def full(fd: int, *rest: object) -> None:
        if call == "close":
            real(fd)
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        output.feed(b"ij")
        output.finish()
    assert output.read_from().spill_path is None
    assert output.read_from().data == b"ghij"
    assert [*tmp_path.glob("*/*")] == []


@pytest.mark.contract("DEF-7")
def test_removing_the_spills_unlinks_links_and_enters_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = SpillDirectory()
    fd, path = directory.create()
    os.close(fd)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    os.symlink(precious, os.path.join(os.path.dirname(path), "link"))
    directory.remove()
    assert not os.path.exists(os.path.dirname(path))
    assert (precious / "file").read_text() == "kept"


def test_spills_of_dead_hosts_are_swept_and_those_of_living_ones_are_not(
    spills: SpillDirectory, tmp_path: Path
) -> None:
    source = (
        "import os, tempfile; from polyhost.process.spills import SpillDirectory; "
        f"tempfile.tempdir = {str(tmp_path)!r}; "
        "print(SpillDirectory().create()[1], flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE, check=False)
    left = Path(killed.stdout.decode().strip())
    assert left.exists()
    fd, path = spills.create()
    os.close(fd)
    others = [tmp_path / "polyhost-demo-1", tmp_path / "polyhost-spill-shared"]
    for other in others:
        other.mkdir()
        other.chmod(0o755)
    link = tmp_path / "polyhost-spill-link"
    link.symlink_to(others[0])
    sweep()
    assert not left.parent.exists()
    assert os.path.exists(path)
    assert all(other.exists() for other in (*others, link))


def test_a_sweep_ends_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "polyhost-spill-1").mkdir(mode=0o700)
    sweep(seconds=-1)
    assert [*tmp_path.iterdir()] != []
    sweep()
    assert [*tmp_path.iterdir()] == []


def test_a_directory_that_was_swept_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def mkdtemp(prefix: str) -> str:
        made.append(tmp_path / f"{prefix}{len(made)}")
        made[-1].mkdir(mode=0o700)
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr("tempfile.mkdtemp", mkdtemp)
    directory = SpillDirectory()
    fd, path = directory.create()
    os.close(fd)
    assert Path(path).parent == made[1]
    directory.remove()
    assert not made[1].exists()


def test_nothing_changes_once_finished(spills: SpillDirectory) -> None:
    output = fed(Collect(10), spills, b"abc")
    output.finish()
    output.feed(b"def")
    output.finish()
    assert output.read_from().data == b"abc"


def test_lines_are_the_newest_non_empty_ones_with_the_unterminated_last(spills: SpillDirectory) -> None:
    output = fed(Collect(100), spills, b"one\n\ntwo\r\nthr", b"ee")
    assert output.lines(10) == ["one", "two", "three"]
    assert output.lines(2) == ["two", "three"]
    assert output.lines(0) == []


def test_text_survives_a_character_cut_in_two(spills: SpillDirectory) -> None:
    output = fed(Collect(3), spills, "é".encode() * 2)
    assert output.read_from().text == "\ufffdé"
