"""The rules by code, and the report that collects what breaks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vppc.errors import Finding

HEADER, PROGRAM, WHOLE, MATCH, DATA, PROGRESS, CLAIM = range(7)
"""Levels. What breaks a rule makes the rules of higher levels meaningless, so only the lowest level is shown."""

SHOWN = 20
"""How many findings of one rule are kept; the others are counted."""


class Rule(NamedTuple):
    """One statement that must hold, and the level at which it is judged."""

    level: int
    statement: str


RULES: Mapping[str, Rule] = {
    "S1": Rule(HEADER, "stages are numbered from 0 in the order a chunk visits them, pp x vp of them"),
    "S2": Rule(HEADER, "every rank below pp holds vp stages"),
    "S3": Rule(HEADER, "layer ranges abut in stage order, from layer 0 to the last layer of the model"),
    "S4": Rule(HEADER, "a stage has at least one layer"),
    "S5": Rule(HEADER, "there is one program a rank, in rank order"),
    "S6": Rule(HEADER, "the embedded costs are for as many layers as the model has"),
    "R1": Rule(HEADER, "a part belongs to a request of the schedule"),
    "R2": Rule(HEADER, "a chunk has at least one part, a part at least one token"),
    "R3": Rule(HEADER, "the parts of a request follow one another, behind its cached tokens, without gap or overlap"),
    "R4": Rule(HEADER, "a part that does not decode ends within the prompt"),
    "R5": Rule(HEADER, "the parts of a request reach the end of its prompt"),
    "R6": Rule(HEADER, "at least one token of a prompt is not cached"),
    "R7": Rule(HEADER, "a part that decodes lies behind the prompt and holds one token"),
    "R8": Rule(HEADER, "a cancelled request is one of the stream, and no part of it follows"),
    "T1": Rule(HEADER, "a request decodes only where rank 0 holds the first and the last stage"),
    "C1": Rule(HEADER, "the id of a channel is its own"),
    "C2": Rule(HEADER, "a channel leads from one rank to another"),
    "C3": Rule(HEADER, "there is a channel for each (src, dst) between which consecutive stages pass"),
    "G1": Rule(HEADER, "segments count from 1 without a hole"),
    "G2": Rule(HEADER, "a segment names the digest of the file before it"),
    "G3": Rule(HEADER, "a segment goes on where each rank's list ends"),
    "G4": Rule(HEADER, "a segment holds at most one program a rank, for ranks of the schedule"),
    "G5": Rule(HEADER, "a segment adds no stages, channels or buffers"),
    "P1": Rule(PROGRAM, "an instruction names a chunk and a stage that exist"),
    "P2": Rule(PROGRAM, "a FORWARD runs on the rank that holds its stage"),
    "P3": Rule(PROGRAM, "no FORWARD runs twice"),
    "P4": Rule(WHOLE, "every stage runs on every chunk"),
    "P5": Rule(PROGRAM, "a FORWARD has no `in` at stage 0, and one at every other stage"),
    "P6": Rule(PROGRAM, "a FORWARD has no `out` only at the last stage of a chunk that makes no token"),
    "P7": Rule(
        PROGRAM, "a SEND goes from the rank of its stage to the rank of the next, a RECV comes from the one before"
    ),
    "P8": Rule(PROGRAM, "a SEND or RECV uses a channel that leads to, or comes from, its peer"),
    "P9": Rule(PROGRAM, "a WAIT names an earlier SEND or RECV of its list"),
    "P10": Rule(PROGRAM, "no SEND or RECV is waited for twice"),
    "P11": Rule(WHOLE, "every SEND and RECV is waited for"),
    "P12": Rule(
        PROGRAM, "a SAMPLE runs once a chunk in which a prompt ends or a request decodes, on the last stage's rank"
    ),
    "P13": Rule(WHOLE, "every chunk in which a prompt ends or a request decodes has its SAMPLE"),
    "B1": Rule(PROGRAM, "buffer numbers are below `buffers`"),
    "C4": Rule(MATCH, "every channel is used"),
    "C5": Rule(MATCH, "every SEND meets a RECV, and every RECV a SEND"),
    "C6": Rule(MATCH, "the i-th SEND and the i-th RECV of a channel name the same activation"),
    "B2": Rule(DATA, "a buffer that is read or sent holds the value that is wanted"),
    "B3": Rule(DATA, "what a RECV brings is read after its WAIT"),
    "B4": Rule(DATA, "no value is overwritten before it is read"),
    "B5": Rule(DATA, "no buffer is written while a transfer uses it"),
    "B6": Rule(DATA, "nothing is written that nobody reads"),
    "K1": Rule(DATA, "a stage sees the parts of a request in order: they are its KV prefix"),
    "T2": Rule(DATA, "a chunk that decodes enters after the SAMPLE that made its token"),
    "D1": Rule(PROGRESS, "the ranks never wait for each other for ever, when sends complete alone (eager)"),
    "D2": Rule(PROGRESS, "the ranks never wait for each other for ever, when a transfer needs both ends (rendezvous)"),
    "M1": Rule(CLAIM, "weights, resident KV and buffers fit a rank's memory limit"),
    "M2": Rule(CLAIM, "a buffer holds the largest chunk that passes through it"),
    "X1": Rule(CLAIM, "the certificate's order runs no WAIT before what it waits for"),
    "X2": Rule(CLAIM, "the certificate's order runs every rank forward, to its end"),
    "X3": Rule(CLAIM, "the certificate's buffer lifetimes are those of the programs"),
}


class Report:
    """Findings as they are made; at most :data:`SHOWN` of a rule, the rest as a number."""

    def __init__(self) -> None:
        self._found: dict[str, list[Finding]] = {}
        self._more: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def full(self, code: str) -> bool:
        """Whether another finding of this rule is only counted, so that it needs no words."""
        return len(self._found.get(code, ())) >= SHOWN

    def add(self, code: str, place: str, problem: str, remedy: str, excerpt: str = "") -> None:
        """Record one finding."""
        if self.full(code):
            self._more[code] = self._more.get(code, 0) + 1
        else:
            self._found.setdefault(code, []).append(Finding(code, place, problem, remedy, excerpt))

    def copy(self) -> Report:
        """A report that starts with the findings of this one."""
        twin = Report()
        twin._found = {code: list(found) for code, found in self._found.items()}
        twin._more = dict(self._more)
        return twin

    def findings(self) -> tuple[Finding, ...]:
        """The findings of the lowest level that has any, rule by rule."""
        if not self._found:
            return ()
        level = min(RULES[code].level for code in self._found)
        shown: list[Finding] = []
        for code, rule in RULES.items():
            if rule.level == level and code in self._found:
                shown += self._found[code]
                if code in self._more:
                    remedy = "mend those above first"
                    shown.append(Finding(code, "elsewhere", f"{self._more[code]} more findings of this rule", remedy))
        return tuple(shown)
