"""vLLM-Ascend, vLLM on Ascend NPUs: :mod:`runtime.runners.vllm` with another build below it.

Made for vLLM-Ascend 0.23.0 and 0.26.0rc1, whose names and signatures ``requirements/upstream.toml`` lists. It has run
on a stand-in, never on an NPU. ``stages`` is what stages need there, ``refusals`` what they do not do.
"""
