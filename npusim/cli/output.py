"""Output of commands: text, files that are written atomically, JSON, and progress on a terminal.

All text for people goes through :func:`say`, which escapes unprintable characters of names from models and files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import select
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from npusim.errors import UsageError
from npusim.report.format import broken, printable
from npusim.trusted_files import replacement


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; None is a closed stream."""
    return stream is not None and stream.isatty()


def terminal_width(stream: TextIO | None) -> int | None:
    """Columns of a stream: the environment variable COLUMNS, or those of its terminal. None in a pipe without
    COLUMNS: lines are not wrapped then."""
    wrapped = os.environ.get("COLUMNS", "").isdecimal() or is_terminal(stream)
    return shutil.get_terminal_size().columns if wrapped else None


def fitted(text: str) -> str:
    """The text wrapped to the width of standard output, see :func:`terminal_width`."""
    width = terminal_width(sys.stdout)
    return text if width is None else broken(text, width)


def say(text: str, *, err: bool = False, whole: bool = False) -> None:
    """Print text with a line feed. ``whole``: do not wrap lines, because users copy them; errors are never wrapped."""
    shown = printable(text)
    if (sys.stderr if err else sys.stdout) is None:
        return  # a closed stream; click handles it from 8.2 on
    try:
        click.echo(shown if whole or err else fitted(shown), err=err)
    except OSError:
        if not err:
            raise
        abandon(sys.stderr)  # it cannot be reported, but the exit code shows the failure


def abandon(stream: TextIO | None) -> None:
    """Discard the buffer of a closed or full stream, so that the interpreter does not fail again at exit."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Warnings(logging.Handler):
    """Write each record as a line to standard error. If that blocks or fails, the record is lost."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        line = self.format(record)
        if _has_room(sys.stderr):
            # A pipe with any room accepts this number of bytes.
            say(line.encode()[: select.PIPE_BUF - 1].decode(errors="ignore"), err=True)


def _has_room(stream: TextIO | None) -> bool:
    if stream is None:
        return False
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # it has no descriptor
        return True


def command_line(words: Iterable[str]) -> str:
    """Words quoted for bash and zsh. Unprintable characters are escaped."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    def escape(char: str) -> str:
        if char in "\\'":
            return f"\\{char}"
        if char.isprintable():
            return char
        code = ord(char)
        if 0xDC80 <= code <= 0xDCFF:  # a byte of an argument that is not UTF-8
            return f"\\x{code - 0xDC00:02x}"
        return f"\\x{code:02x}" if code < 0x80 else f"\\U{code:08x}"

    return "".join(map(escape, word))


def check_destination(path: Path) -> None:
    """Raise UsageError unless a file can be created at ``path``. Called before long work."""
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; a file name is needed")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no directory {path.parent}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces ``path`` if the block succeeds, and is removed if it fails.

    Pipes and devices such as /dev/stdout are written directly, because replacing them would destroy them. An OSError
    names ``path``, which errors of a full disk do not.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            yield target
        else:
            with replacement(target, mode=0o666) as draft:
                yield Path(draft.name)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as draft:
        draft.write_text(text, "utf-8")


def write_json(destination: str, value: Any) -> None:
    """Write ``value`` as indented JSON to a file, or to standard output for ``-``."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    if destination == "-":
        click.echo(text, nl=False)
    else:
        write_text(Path(destination), text)


def answer(json_file: str | None, value: Callable[[], Any], text: Callable[[], str], *, whole: bool = False) -> None:
    """Write the result of a command: as JSON to ``json_file``, and as text (see :func:`say`) unless the JSON goes to
    standard output."""
    if json_file is not None:
        write_json(json_file, value())
    if json_file != "-":
        say(text(), whole=whole)


@contextlib.contextmanager
def progress(message: str, quiet: bool = False) -> Iterator[None]:
    """Show the message and the elapsed seconds on standard error during the block. Silent unless that is a terminal."""
    if quiet or not is_terminal(sys.stderr):
        yield
        return
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(printable(message, lines=False), done), daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        _show("\r\x1b[K")


def _show(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        sys.stderr.write(text)
        sys.stderr.flush()


def _tick(message: str, done: threading.Event) -> None:
    start = time.monotonic()
    delay = 0.3  # nothing is shown for short work
    while not done.wait(delay):
        _show(f"\r\x1b[K{message} ... {time.monotonic() - start:.0f} s")
        delay = 1.0


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], object]]:
    """A progress line on the terminal with the remaining time; the block calls the result with (done, total). Silent
    unless standard error is a terminal."""
    if not is_terminal(sys.stderr):
        yield lambda done, total: None
        return
    bar: Any
    with click.progressbar(
        length=1,
        label=printable(label, lines=False),
        show_pos=True,
        show_eta=True,
        file=sys.stderr,
        item_show_func=lambda _: "",
    ) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield show


def again(context: click.Context) -> str:
    """The command line of this command, to call it again."""
    name = context.info_name
    return command_line(["npusim", *sys.argv[1:]]) if sys.argv[1:2] == [name] else f"{context.command_path} ..."
