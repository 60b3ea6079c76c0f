"""What `helm test` runs: the gateway answers its API, shows its metrics, and has a model answer.

Runs with nothing but the Python of the gateway's image. Arguments: the base addresses of the API
and of the status port, and the model that is asked for a token; without one none is.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

REACHED_S = 30
"""For the network to let a new pod through: its policies learn of a pod when it already runs."""
TIMEOUT_S = 10
TOKEN_S = 90
"""For the token: its request may wake a service that sleeps."""


def main() -> int:
    """Asks both ports; returns the exit status."""
    api, status, *asked = sys.argv[1:]
    models = json.loads(_answer(f"{api}/v1/models"))
    if models["object"] != "list":
        print(f"{api}/v1/models is no list: {models}")
        return 1
    print(f"{api} serves {[model['id'] for model in models['data']] or 'no model yet'}")
    for model in asked:
        body = {"model": model, "prompt": "Hello", "max_tokens": 1}
        completion = json.loads(_answer(f"{api}/v1/completions", body, TOKEN_S))
        if completion["usage"]["completion_tokens"] != 1:
            print(f"{model} made no token: {completion}")
            return 1
        print(f"{model} made a token: {completion['choices'][0]['text']!r}")
    metrics = _answer(f"{status}/metrics").decode()
    count = sum(line.startswith("octavo_gateway_") for line in metrics.splitlines())
    print(f"{status}/metrics shows {count} values of the gateway")
    return 0 if count else 1


def _answer(url: str, body: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> bytes:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, headers={"Content-Type": "application/json"})
    end = time.monotonic() + REACHED_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                read: bytes = answer.read()
                return read
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            if time.monotonic() > end:
                raise
            print(f"{url} is not reached yet: {error.reason}", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
