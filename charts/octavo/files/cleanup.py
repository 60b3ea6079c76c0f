"""What runs before an uninstall with `cleanup.enabled`: deletes the InferenceServices.

Their pods, Services and so on belong to them, so Kubernetes deletes those too, with or without an
operator. Runs with nothing but the Python of the operator's image and the pod's own token.
Arguments: the namespaces; none means all. One that was deleted has taken its Role with it, so that
it may not be read: that stops the uninstall only where it goes for all of them.
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
FORBIDDEN = 403
NOT_FOUND = 404


def main() -> int:
    """Deletes all that there are; returns the exit status."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    scopes = [f"{GROUP}/namespaces/{name}" for name in sys.argv[1:]] or [GROUP]
    num_refused = 0
    for path in scopes:
        try:
            found = json.loads(_call(server, "GET", f"{path}/inferenceservices"))
        except urllib.error.HTTPError as error:
            if error.code != FORBIDDEN:
                raise
            print(f"{path} may not be read: it is gone, or its Role is")
            num_refused += 1
            continue
        for item in found["items"]:
            namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
            _call(server, "DELETE", f"{GROUP}/namespaces/{namespace}/inferenceservices/{name}")
            print(f"deleted {namespace}/{name}")
    if num_refused == len(scopes):
        print("nothing may be read; `helm uninstall --no-hooks` leaves out this step")
        return 1
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
        if error.code != NOT_FOUND:
            raise
        return b'{"items": []}'


if __name__ == "__main__":
    sys.exit(main())
