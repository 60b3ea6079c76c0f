"""What `helm test` runs: the gateway answers its API and shows its metrics.

Runs with nothing but the Python of the gateway's image. Arguments: the base addresses of the API
and of the status port.
"""

from __future__ import annotations

import json
import sys
import urllib.request

TIMEOUT_S = 10


def main() -> int:
    """Asks both ports; returns the exit status."""
    api, status = sys.argv[1:]
    models = json.loads(_get(f"{api}/v1/models"))
    if models["object"] != "list":
        print(f"{api}/v1/models is no list: {models}")
        return 1
    print(f"{api} serves {[model['id'] for model in models['data']] or 'no model yet'}")
    metrics = _get(f"{status}/metrics").decode()
    count = sum(line.startswith("octavo_gateway_") for line in metrics.splitlines())
    print(f"{status}/metrics shows {count} values of the gateway")
    return 0 if count else 1


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read()
        return body


if __name__ == "__main__":
    sys.exit(main())
