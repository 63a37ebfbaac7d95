"""The VPP paper's tables and figures, computed from the example cost files: ``python -m examples.paper``."""
