"""A model by the name of a preset, or by its config file."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from vppc.errors import InputError
from vppc.files import read_text, source_name
from vppc.formats import check_not_ours
from vppc.json_text import loads
from vppc.models.config import parse_config
from vppc.models.spec import ModelSpec

_PUBLISHED = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def preset_names() -> tuple[str, ...]:
    """The models that need no config file."""
    return tuple(_presets())


def load_model(name_or_path: str) -> ModelSpec:
    """The model of a preset's name, also behind an owner's as on Hugging Face; of a ``config.json`` (``-`` is stdin),
    or of a folder that has one.

    Raises InputError for a name that is no preset, and for a config that cannot be read.
    """
    preset = (name_or_path.partition("/")[2] if _is_published(name_or_path) else name_or_path).lower()
    if preset in _presets():
        config = _presets()[preset]
        spec = parse_config(config, preset, f"preset {preset}")
        return replace(spec, published_dtype=config.get("published_dtype", ""))
    if not _is_path(name_or_path):
        close = get_close_matches(preset, _presets())
        nearest = f"; the nearest names are {', '.join(close)}" if close else ""
        raise InputError(
            f"unknown model {name_or_path!r}",
            remedy=f"give the path of its config.json, or a preset{nearest}; all: {', '.join(_presets())}",
        )
    path = os.path.join(name_or_path, "config.json") if os.path.isdir(name_or_path) else name_or_path
    file = source_name(path)
    text = read_text(path)
    check_not_ours(text, "a model's config", file=file)
    return parse_config(loads(text, file), _name_of(path), file)


@cache
def _presets() -> dict[str, Any]:
    """The published configs of some models, cut down to the fields that :mod:`vppc.models.config` reads.

    ``published_dtype`` stands for the quantization of those whose published weights have 8 bits.
    """
    presets: dict[str, Any] = loads((files("vppc.models") / "presets.json").read_text(encoding="utf-8"))
    return presets


def _is_path(text: str) -> bool:
    if text == "-" or text.endswith(".json") or os.path.exists(text):
        return True
    return os.path.basename(text) != text and not _is_published(text)


def _is_published(text: str) -> bool:
    """Whether it is a model's name on Hugging Face, ``owner/name``, and no path here."""
    return _PUBLISHED.fullmatch(text) is not None and not text.endswith(".json") and not os.path.exists(text)


def _name_of(path: str) -> str:
    """What a model is called after its file: the folder of a ``config.json``, or what comes before ``.config.json``."""
    if path == "-":
        return "stdin"
    file = Path(path).resolve()
    return file.parent.name if file.name == "config.json" else file.name.removesuffix(".json").removesuffix(".config")
