"""A stand-in for vLLM-Ascend: the names and signatures that the runtime uses of it, over vLLM's CPU build.

vLLM finds it as it finds the real package, by its entry point. What computes is vLLM's own model runner for CPUs.
Around it the stand-in does what the real one does for its one model runner a process, which stages have to live with:
globals that the first model runner sizes and every forward writes, a forward context, FlashComm's rows. It notes each
forward, see :mod:`vllm_ascend.noted`.
"""


def register_connector() -> None:
    """The plugin for KV connectors."""
    from vllm_ascend.distributed.kv_transfer import register_connector as register

    register()


def register() -> str:
    """The platform plugin. The vLLM here takes itself for the one that vLLM-Ascend 0.23.0 stands on."""
    import vllm

    vllm.__version__ = "0.23.0"
    return "vllm_ascend.platform.NPUPlatform"
