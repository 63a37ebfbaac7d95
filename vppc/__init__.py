"""vppc: a schedule compiler for virtual pipeline parallelism."""

__version__ = "0.1.0"
