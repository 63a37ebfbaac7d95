"""Every error a user can meet: where it is, what is wrong, what to do.

Two kinds, told apart by the exit status of the command line:

* :class:`InputError` (status 2): one value is wrong by itself, or a file cannot be read or written.
* :class:`CheckFailed` (status 1): a well-formed file contradicts itself or misses a target; it carries
  one :class:`Finding` a broken rule.
"""

from __future__ import annotations

from dataclasses import dataclass


class VppcError(Exception):
    """Base of all errors that are shown to a user as one message, never as a traceback."""

    exit_status = 2


class InputError(VppcError):
    """Bad usage or bad input.

    ``file`` is the path as the user gave it (or an option name), ``place`` a JSON path, a line or an
    option inside it, ``problem`` what is wrong and ``remedy`` what is allowed or what to do.
    """

    exit_status = 2

    def __init__(self, problem: str, *, file: str = "", place: str = "", remedy: str = "") -> None:
        self.problem, self.file, self.place, self.remedy = problem, file, place, remedy
        super().__init__(problem, file, place, remedy)

    def in_file(self, file: str) -> InputError:
        """The same error with its file named, for readers of text that do not know the path."""
        return InputError(self.problem, file=self.file or file, place=self.place, remedy=self.remedy)

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.place) if part)
        text = f"{where}: {self.problem}" if where else self.problem
        return f"{text}\n  hint: {self.remedy}" if self.remedy else text


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: ``code`` (see ``vppc.ir.rules``), where, why, and what would mend it.

    ``excerpt`` shows the instructions around the place, the culprit marked with an arrow.
    """

    code: str
    place: str
    problem: str
    remedy: str
    excerpt: str = ""

    def __str__(self) -> str:
        lines = [f"{self.code} {self.place}: {self.problem}"]
        if self.excerpt:
            lines.append(self.excerpt)
        lines.append(f"  hint: {self.remedy}")
        return "\n".join(lines)


class CheckFailed(VppcError):
    """A well-formed file that breaks rules, or a target that is missed."""

    exit_status = 1

    def __init__(self, findings: tuple[Finding, ...], *, file: str = "") -> None:
        self.findings, self.file = findings, file
        super().__init__(findings, file)

    def __str__(self) -> str:
        head = f"{self.file}: " if self.file else ""
        return "\n".join(head + str(finding) for finding in self.findings)
