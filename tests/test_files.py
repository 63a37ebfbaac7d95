"""Files in and out: all or nothing, and one message when it fails."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vppc.errors import InputError
from vppc.files import read_text, write_text

ROOT = Path(__file__).resolve().parents[1]
LOUD = "write_text(None, (str(i) + '\\n' for i in range(10**6)))"
QUIET = "write_text('-', 'few')"


def program(use: str) -> list[str]:
    """A process that uses the module and says on stderr what it could not do."""
    code = (
        "import sys; from vppc.errors import InputError; from vppc.files import read_text, write_text\n"
        f"try: {use}\nexcept InputError as e: raise SystemExit(str(e))"
    )
    return [sys.executable, "-c", code]


def test_text_is_read_as_it_is_but_for_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes("\ufeffé\r\nb\n".encode())
    assert read_text(str(file)) == "é\r\nb\n"


def test_dash_is_stdin() -> None:
    echo = program("write_text(None, read_text('-').upper())")
    assert subprocess.run(echo, cwd=ROOT, input=b"abc\n", capture_output=True, check=True).stdout == b"ABC\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "nothing: cannot be read: No such file or directory"),
        ("folder", "folder: cannot be read: Is a directory"),
        ("text/below", "text/below: cannot be read: Not a directory"),
        ("latin", "latin: line 2: byte 0xe9 is not UTF-8\n  hint: save the file as UTF-8 text"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text").write_text("x")
    Path("latin").write_bytes(b"a\n\xe9\n")
    with pytest.raises(InputError) as raised:
        read_text(name)
    assert str(raised.value) == message


def test_a_file_is_written_with_the_usual_rights(tmp_path: Path) -> None:
    file, usual = tmp_path / "out", tmp_path / "usual"
    usual.touch()
    write_text(str(file), ["a\n", "é\n"])
    assert file.read_bytes() == "a\né\n".encode()
    assert file.stat().st_mode == usual.stat().st_mode


def test_what_utf_8_has_no_code_for_is_escaped_as_in_json(tmp_path: Path) -> None:
    file = tmp_path / "out"
    write_text(str(file), os.fsdecode(b"a\xff ") + "\ud800é")
    assert file.read_bytes() == b"a\\udcff \\ud800\xc3\xa9"


def test_a_file_that_is_replaced_keeps_its_rights(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("old")
    file.chmod(0o600)
    write_text(str(file), "new")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o600)


def test_an_error_on_the_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("old")

    def pieces() -> Iterator[str]:
        yield "half"
        raise InputError("stop")

    with pytest.raises(InputError, match="stop"):
        write_text(str(file), pieces())
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"out": "old"}


def test_through_a_link_the_file_it_points_to_is_written(tmp_path: Path) -> None:
    file, link = tmp_path / "folder" / "out", tmp_path / "link"
    file.parent.mkdir()
    link.symlink_to(file)
    write_text(str(link), "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_device_is_written_not_replaced(tmp_path: Path) -> None:
    write_text("/dev/null", "lost")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "folder: cannot be written: Is a directory"),
        ("none/out", "none/out: cannot be written: {here}/none is not a folder"),
        ("text/out", "text/out: cannot be written: {here}/text is not a folder"),
        ("x" * 300, "x" * 300 + ": cannot be written: File name too long"),
        ("/dev/full", "/dev/full: cannot be written: No space left on device"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text").write_text("x")
    with pytest.raises(InputError) as raised:
        write_text(name, "y")
    assert str(raised.value) == message.format(here=tmp_path.resolve())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "text"]
    assert Path("text").read_text() == "x"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written: Permission denied"):
        write_text(str(tmp_path / "out"), "x")


def test_a_reader_of_stdout_that_has_seen_enough_is_no_error() -> None:
    with subprocess.Popen(program(LOUD), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        assert writer.stdout.readline() == b"0\n"
        writer.stdout.close()
        assert (writer.stderr.read(), writer.wait()) == (b"", 0)


@pytest.mark.parametrize("use", [LOUD, QUIET])
def test_stdout_without_space(use: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program(use), cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"stdout: cannot be written: No space left on device\n")


def test_stdout_that_cannot_show_a_letter() -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        program("write_text(None, '\\u2588')"), cwd=ROOT, env=ascii_only, capture_output=True, text=True, check=False
    )
    assert done.stderr == (
        "stdout: cannot show '\\u2588' in the encoding ascii\n"
        "  hint: set PYTHONIOENCODING=utf-8, or write to a file with -o\n"
    )


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("sys.stdin = None; read_text('-')", "stdin: cannot be read: it is closed\n"),
        ("sys.stdout = None; write_text('-', 'x')", "stdout: cannot be written: it is closed\n"),
    ],
)
def test_closed_standard_streams(use: str, message: str) -> None:
    assert subprocess.run(program(use), cwd=ROOT, capture_output=True, text=True, check=False).stderr == message
