"""What to do about a wrong command line, where that can be told: the name that was meant, the option to repeat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import click


def remedy(error: click.UsageError, words: Sequence[str]) -> str | None:
    """What to do about the ``error`` of a command line of these ``words``; None where that cannot be told."""
    command = error.ctx.command if error.ctx is not None else None
    if isinstance(command, click.Group) and error.ctx is not None:
        typed = next((word for word in words if not word.startswith("-")), "")
        return _meant(typed, command.list_commands(error.ctx))
    if isinstance(error, click.BadParameter):
        choice = error.param.type if error.param is not None else None
        return _meant(_culprit(error.message, words), choice.choices) if isinstance(choice, click.Choice) else None
    if command is not None and "unexpected extra argument" in error.message:
        return _repeated(command, words)
    return None


def _meant(typed: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # which most runs do not need

    close = get_close_matches(typed.lower(), known, n=1)
    return f"did you mean {close[0]}?" if close else None


def _culprit(message: str, words: Sequence[str]) -> str:
    """The value that a message begins with: a word, or what is behind the = of one."""
    values = chain(words, (word.partition("=")[2] for word in words))
    return next((value for value in values if value and message.startswith(f"{value!r} ")), "")


def _repeated(command: click.Command, words: Sequence[str]) -> str | None:
    """How an option is given several values, where one of them stands behind another."""
    repeatable = {
        name for each in command.params if isinstance(each, click.Option) and each.multiple for name in each.opts
    }
    for option, value, extra in zip(words, words[1:], words[2:], strict=False):
        if option in repeatable and not extra.startswith("-"):
            return f"an option takes one value; repeat it: {option} {value} {option} {extra}"
    return None
