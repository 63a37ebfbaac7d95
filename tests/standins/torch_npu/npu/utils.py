"""torch_npu.npu.utils."""


def get_cann_version(module: str = "CANN") -> str:
    return "8.3.RC1"
