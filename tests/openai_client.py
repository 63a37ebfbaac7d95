"""``python tests/openai_client.py PORT`` in vLLM's environment, with prompts as JSON on stdin.

Writes what OpenAI's own client gets for each, [tokens, streamed tokens].
"""

from __future__ import annotations

import json
import sys

from openai import OpenAI
from vllm_runs import TOKENS


def main(port: str) -> None:
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=300.0, max_retries=0)
    answers = []
    for prompt in json.load(sys.stdin):
        asked = {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0.0}
        extra = {"ignore_eos": True, "return_token_ids": True}
        whole = client.completions.create(**asked, extra_body=extra)
        streamed = []
        for piece in client.completions.create(**asked, extra_body=extra, stream=True):
            streamed += piece.choices[0].token_ids
        answers.append([whole.choices[0].token_ids, streamed])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
