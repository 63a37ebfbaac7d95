"""Files in and out: read whole, written whole or not at all, with one message when it fails."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import IO, Any, BinaryIO, TextIO, cast

from vppc.errors import InputError

_PIECE = 2**26
MOST_PIECES = 64
"""Of a file that is read whole, so many pieces of 64 MiB at most."""


LONGEST_LINE = 2**26
"""Bytes of a line, so that a small packed file cannot ask for all memory."""


def check_one_stdin(paths: Iterable[str | None]) -> None:
    """Raises InputError when more than one of the inputs is stdin, which can be read once."""
    if sum(path == "-" for path in paths) > 1:
        raise InputError("only one input can be stdin", place="-", remedy="give a file for the others")


def source_name(path: str) -> str:
    """How messages call an input file: ``-`` is stdin."""
    return "stdin" if path == "-" else path


def read_bytes(path: str) -> bytes:
    """The bytes of a file, or of stdin for ``-``. Raises InputError when it cannot be read, or has no end."""
    if path != "-" and os.path.isfile(schedule := os.path.join(path, "schedule.json")):
        raise InputError(
            "is the folder of a journal, not a file",
            file=path,
            remedy=f"vppc profile, explain, plot, report and trace take it; the schedule that ran is {schedule}",
        )
    try:
        if path != "-":
            with open(path, "rb") as stream:
                found = os.fstat(stream.fileno())
                if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_PIECES * _PIECE:
                    return stream.read()  # at once: pieces that are joined are there twice
                return _all_bytes(stream, path)
        if sys.stdin is None:
            raise InputError("cannot be read: it is closed", file="stdin")
        return _all_bytes(sys.stdin.buffer, "stdin")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=source_name(path)) from None


def read_text(path: str) -> str:
    """The UTF-8 text of a file, or of stdin for ``-``, line ends as they are and without a byte order mark.

    Raises InputError when it cannot be read or is not UTF-8.
    """
    return decode(read_bytes(path), source_name(path))


@contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO]:
    """The bytes of a file, or of stdin for ``-``, as a stream for files of any size; of gzip, what is packed in it.

    Raises InputError when it cannot be read, then or while it is read.
    """
    try:
        if path != "-":
            with open(path, "rb") as stream:
                yield _unpacked(stream)
        elif sys.stdin is None:
            raise InputError("cannot be read: it is closed", file="stdin")
        else:
            yield _unpacked(cast(BufferedReader, sys.stdin.buffer))
    except (OSError, EOFError, zlib.error) as error:
        problem = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {problem}", file=source_name(path)) from None


def read_lines(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file (``-`` is stdin) with their ends, one after another; no byte order mark.

    Raises InputError where it cannot be read, is not UTF-8 or has a line without end.
    """
    with open_bytes(path) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), start=1):
            if len(line) == LONGEST_LINE:
                problem = f"is {LONGEST_LINE >> 20} MiB long, or longer"
                raise InputError(problem, file=source_name(path), place=f"line {number}", remedy="text, line by line")
            yield decode(line, source_name(path), line=number)


def decode(data: bytes, file: str = "", *, line: int = 1) -> str:
    """The text of a file's bytes from a ``line`` on, as :func:`read_text` gives it.

    Raises InputError when it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise InputError(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8",
            file=file,
            place=f"line {line}",
            remedy="save the file as UTF-8 text",
        ) from None


def write_bytes(path: str, data: bytes) -> None:
    """Writes bytes to a file as :func:`write_text` writes text. Raises InputError when it cannot be written."""
    _write_file(path, (data,), "wb")


def write_text(path: str | None, text: str | Iterable[str]) -> None:
    """Writes text, or its pieces, as UTF-8 to a file; ``None`` and ``-`` are stdout.

    The file appears when it is complete: it is written beside and renamed, so that an error on the way leaves
    what was there before. Devices and pipes, which cannot be replaced, are written directly. A reader of
    stdout that goes away early (``head``) is no error. Raises InputError when it cannot be written.
    """
    pieces = (text,) if isinstance(text, str) else text
    if path is None or path == "-":
        _write_stdout(sys.stdout, pieces)
        return
    _write_file(path, pieces, "w")


def check_writable(path: str) -> None:
    """Raises InputError for a file that :func:`write_text` could not write, as far as can be told beforehand.

    Nothing is created or changed. ``-`` is stdout.
    """
    if path == "-":
        if sys.stdout is None:
            raise InputError("cannot be written: it is closed", file="stdout")
        return
    with _named(path):
        target = _target(path)
        needed = target if is_stream(target) else os.path.dirname(target)
        if not os.access(needed, os.W_OK):
            raise InputError(f"cannot be written: {needed} is not writable", file=path)


def is_stream(path: str) -> bool:
    """Whether a file is there that cannot be replaced, a device or a pipe."""
    return os.path.exists(path) and not os.path.isfile(path)


def _write_file(path: str, pieces: Iterable[str] | Iterable[bytes], mode: str) -> None:
    with _named(path):
        target = _target(path)
        if is_stream(target):
            with _opened(target, mode) as stream:
                stream.writelines(pieces)
        else:
            _replace(target, pieces, mode)


def _target(path: str) -> str:
    """The file itself that is to be written. Raises InputError and OSError where none can be."""
    target = os.path.realpath(path)  # of a link, what it points to is replaced
    if not os.path.basename(path) and not os.path.isdir(target):
        raise InputError("cannot be written: it names a folder, and there is none", file=path)
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.path.isdir(os.path.dirname(target)):
        raise InputError(f"cannot be written: {os.path.dirname(target)} is not a folder", file=path)
    with suppress(FileNotFoundError):
        os.stat(target)  # a name that is too long, or a link to itself
    return target


@contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=path) from None


def _all_bytes(stream: BinaryIO, file: str) -> bytes:
    # piece by piece: one read of an endless device could not be interrupted
    pieces: list[bytes] = []
    while piece := stream.read(_PIECE):
        pieces.append(piece)
        if len(pieces) > MOST_PIECES:
            raise InputError(f"is larger than {MOST_PIECES * _PIECE >> 20:,} MiB", file=file)
    return b"".join(pieces)


def _unpacked(stream: BufferedReader) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if stream.peek(2)[:2] == b"\x1f\x8b" else stream


def _opened(path: str, mode: str) -> IO[Any]:
    if "b" in mode:
        return open(path, mode)
    # half of a pair of codes, or a byte of a file's name, has none in UTF-8: it is escaped, as in JSON
    return open(path, mode, encoding="utf-8", errors="backslashreplace", newline="")


def _replace(target: str, pieces: Iterable[str] | Iterable[bytes], mode: str) -> None:
    beside = os.path.join(os.path.dirname(target), f".vppc-{os.urandom(8).hex()}.tmp")
    try:
        with _opened(beside, mode.replace("w", "x")) as stream:
            stream.writelines(pieces)
        if os.path.exists(target):
            shutil.copymode(target, beside)
        os.replace(beside, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise


def _write_stdout(stdout: TextIO | None, pieces: Iterable[str]) -> None:
    if stdout is None:
        raise InputError("cannot be written: it is closed", file="stdout")
    try:
        stdout.writelines(pieces)
        stdout.flush()
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        discard_stdout()
        raise InputError(f"cannot be written: {error.strerror or error}", file="stdout") from None
    except UnicodeEncodeError as error:
        raise InputError(
            f"cannot show {error.object[error.start : error.end]!a} in the encoding {error.encoding}",
            file="stdout",
            remedy="set PYTHONIOENCODING=utf-8, or write to a file with -o",
        ) from None


def discard_stdout() -> None:
    """Forget what is still buffered for stdout: it would fail again, loudly, when the interpreter flushes at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
