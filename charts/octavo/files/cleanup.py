"""What runs before an uninstall with `cleanup.enabled`: deletes the InferenceServices.

Their pods, Services and so on belong to them, so Kubernetes deletes those too, with or without an
operator. Runs with nothing but the Python of the operator's image and the pod's own token.
Arguments: the namespaces; none means all.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
GROUP = "/apis/serving.octavo.dev/v1alpha1"
TIMEOUT_S = 30


def main() -> int:
    """Deletes all that there are; returns the exit status."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    for path in [f"{GROUP}/namespaces/{name}" for name in sys.argv[1:]] or [GROUP]:
        for item in json.loads(_call(server, "GET", f"{path}/inferenceservices"))["items"]:
            namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
            _call(server, "DELETE", f"{GROUP}/namespaces/{namespace}/inferenceservices/{name}")
            print(f"deleted {namespace}/{name}")
    return 0


def _call(server: str, method: str, path: str) -> bytes:
    """Returns the answer; what is not there (any more) counts as an empty list."""
    token = (ACCOUNT / "token").read_text(encoding="utf-8")
    request = urllib.request.Request(
        server + path, method=method, headers={"Authorization": f"Bearer {token}"}
    )
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=trust) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return b'{"items": []}'


if __name__ == "__main__":
    sys.exit(main())
