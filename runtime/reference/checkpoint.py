"""Weights from a folder in Hugging Face layout, read from its safetensors files a tensor, or a run of rows, at a time.

The format (https://huggingface.co/docs/safetensors): eight bytes with the length of a JSON header, the header
(``{name: {"dtype", "shape", "data_offsets": [begin, end]}}``, offsets behind the header), the numbers.
Reading it takes no library and runs no code from the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vppc.errors import InputError
from vppc.files import read_text
from vppc.json_text import loads, shown

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LARGEST_HEADER = 100_000_000
"""The format's own limit, in bytes."""


class Checkpoint:
    """The weights of a model folder: one ``model.safetensors``, or the files that an index names."""

    def __init__(self, folder: str) -> None:
        """Finds the files. Raises InputError when there are none, or their index is no index."""
        self._folder = Path(folder)
        self._files: dict[str, _TensorFile] = {}
        self._index: dict[str, str] | None = None
        if (self._folder / INDEX).exists():
            self._index = _read_index(str(self._folder / INDEX))
        elif not (self._folder / SINGLE).exists():
            raise InputError(
                "has no safetensors weights", file=folder, remedy=f"a folder with {SINGLE}, or {INDEX} and its files"
            )

    def read(self, name: str, shape: tuple[int, ...], share: Sequence[slice]) -> Tensor:
        """``tensor[share]`` in the file's dtype, finite.

        Raises InputError that names file and tensor when it is missing, cut off, or not what the config says.
        """
        if self._index is None:
            file = SINGLE
        elif name in self._index:
            file = self._index[name]
        else:
            raise InputError(f"names no file for {name}", file=str(self._folder / INDEX), remedy=_OTHER_MODEL)
        if file not in self._files:
            self._files[file] = _TensorFile(str(self._folder / file))
        return self._files[file].read(name, shape, share)


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int


class _TensorFile:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, name: str, shape: tuple[int, ...], share: Sequence[slice]) -> Tensor:
        entry = self._entry(name)
        if entry.shape != shape:
            raise self._error(name, f"has the shape {list(entry.shape)}, the config asks for {list(shape)}")
        first, last, _ = share[0].indices(shape[0])
        row = math.prod(shape[1:])
        flat = self._numbers(name, entry, first * row, (last - first) * row)
        tensor = flat.view(last - first, *shape[1:])[(slice(None), *share[1:])].contiguous()
        if not torch.isfinite(tensor).all():
            raise self._error(name, "holds NaN or infinity", "the file is damaged; fetch it again")
        return tensor

    def _numbers(self, name: str, entry: _Entry, first: int, count: int) -> Tensor:
        size = entry.dtype.itemsize
        data = bytearray(count * size)
        try:
            with open(self._path, "rb") as stream:
                stream.seek(entry.begin + first * size)
                complete = stream.readinto(data) == len(data)
        except OSError as error:
            raise self._error(name, f"cannot be read: {error.strerror or error}", "") from None
        if not complete:
            raise self._error(name, "is cut off: the file ends before its last number", "fetch the file again")
        return torch.frombuffer(data, dtype=entry.dtype)

    def _entry(self, name: str) -> _Entry:
        offset, entries, size = self._header
        if name not in entries:
            raise self._error(name, "is not in the file")
        try:
            fields = entries[name]
            dtype, shape, (begin, end) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
            whole = all(type(each) is int and each >= 0 for each in (*shape, begin, end))
        except (TypeError, KeyError, ValueError):
            whole = False
        if not whole:
            raise self._error(name, "has a damaged header", 'an object with "dtype", "shape" and "data_offsets"')
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise self._error(name, f"has the dtype {shown(dtype)}", f"one of {', '.join(DTYPES)}")
        if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
            raise self._error(
                name, f"has {end - begin} bytes for the shape {list(shape)} of {dtype}", "the header is damaged"
            )
        if offset + end > size:
            raise self._error(
                name, f"is cut off: it ends at byte {offset + end}, the file at {size}", "fetch the file again"
            )
        return _Entry(DTYPES[dtype], shape, offset + begin)

    @cached_property
    def _header(self) -> tuple[int, dict[str, Any], int]:
        """Where the numbers begin, the header, and the size of the file."""
        try:
            with open(self._path, "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                length = int.from_bytes(stream.read(8), "little")
                if size < 8 or length > min(size - 8, LARGEST_HEADER):
                    raise InputError(
                        "is cut off, or no safetensors file: its header is not complete",
                        file=self._path,
                        remedy="fetch the file again",
                    )
                text = stream.read(length).decode()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=self._path) from None
        except UnicodeDecodeError:
            raise InputError("is no safetensors file: its header is not UTF-8", file=self._path) from None
        header = loads(text, self._path)
        if not isinstance(header, dict):
            raise InputError(f"is no safetensors file: its header is {shown(header)}", file=self._path)
        return 8 + length, header, size

    def _error(self, name: str, problem: str, remedy: str | None = None) -> InputError:
        return InputError(problem, file=self._path, place=name, remedy=_OTHER_MODEL if remedy is None else remedy)


_OTHER_MODEL = "config.json and the weights must be of one model, without quantization"


def _read_index(path: str) -> dict[str, str]:
    index = loads(read_text(path), path)
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict):
        raise InputError("is not an index of safetensors files", file=path, remedy='an object with a "weight_map"')
    for name, file in files.items():
        if not isinstance(file, str) or not file or Path(file).name != file or not file.isprintable():
            raise InputError(
                f"{shown(file)} is not the name of a file in the folder", file=path, place=f"weight_map[{shown(name)}]"
            )
    return files
