"""The program that a process runs: read, compared with everybody else's, and proven before anything starts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from runtime.faults import RunFailed
from runtime.reading import schedule_of
from runtime.world import World
from vppc.errors import CheckFailed, InputError
from vppc.ir.rules import check
from vppc.ir.schedule import Schedule

_REMEDY = "name a schedule that vppc compile wrote"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A schedule and the SHA-256 of the file that it was read from."""

    schedule: Schedule
    digest: str


def load(path: str) -> Loaded:
    """Read a schedule file and check its certificate in one pass.

    Raises InputError for a file that is no schedule or has no certificate, CheckFailed for one that breaks a rule.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path, remedy=_REMEDY) from None
    return proven(data, path)


def proven(data: bytes, path: str) -> Loaded:
    """The schedule in the bytes of a file, when its certificate holds; ``path`` is for messages.

    Raises InputError and CheckFailed as :func:`load` does.
    """
    schedule = schedule_of(data, path)
    if schedule.certificate is None:
        raise InputError(
            "has no certificate, and unproven programs are not run",
            file=path,
            remedy=f"`vppc verify {path} -o PROVEN` writes it with one",
        )
    findings = check(schedule)
    if findings:
        raise CheckFailed(findings, file=path)
    return Loaded(schedule, hashlib.sha256(data).hexdigest())


def load_together(world: World, path: str) -> Loaded:
    """The program, when every process has the same one.

    Raises RunFailed with the message of a process that cannot load its file, or with the names of the processes
    whose file is another one than process 0's.
    """
    loaded = world.together(lambda: load(path))
    digests = world.gather(loaded.digest)
    others = [str(process) for process, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise RunFailed(
            f"another schedule file on process {', '.join(others)} than on process 0: "
            + ", ".join(f"{process} has {digest[:12]}" for process, digest in enumerate(digests))
        )
    return loaded
