"""vllm_ascend.distributed.kv_transfer."""

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory


def register_connector() -> None:
    KVConnectorFactory.register_connector(
        "MooncakeConnectorV1", "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector", "MooncakeConnector"
    )
