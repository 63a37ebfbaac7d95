"""Models: what a config says, and the parameters, FLOPs, bytes and payloads that follow from it."""

from vppc.models.load import load_model, preset_names
from vppc.models.spec import ModelSpec

__all__ = ["ModelSpec", "load_model", "preset_names"]
