"""One model, one replica, tokens in and tokens out. Knows no Kubernetes, Redis or HTTP."""
