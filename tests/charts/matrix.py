"""Sets of values that between them use every template and both sides of every switch."""

from __future__ import annotations

from typing import Any

POD_SETTINGS: dict[str, Any] = {
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                ]
            }
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "octavo"}},
        }
    ],
    "priorityClassName": "high",
    "podAnnotations": {"note": "yes"},
    "podLabels": {"team": "serving"},
    "podSecurityContext": {"runAsUser": 1234, "fsGroup": 1234},
    "securityContext": {"seLinuxOptions": {"level": "s0"}},
    "extraArgs": ["--log-level=debug"],
    "extraEnv": [{"name": "OTEL_SERVICE_NAME", "value": "x"}],
    "extraVolumes": [{"name": "more", "configMap": {"name": "more"}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
}
SLOWLY = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}
COMPONENTS = ("operator", "gateway", "valkey")

MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespaced": {"rbac": {"clusterScoped": False}},
    "namespaces": {"rbac": {"clusterScoped": False, "namespaces": ["red", "blue"]}},
    "cluster, some namespaces": {"rbac": {"namespaces": ["red"]}},
    "no roles": {"rbac": {"create": False}, "cleanup": {"enabled": True}},
    "no gateway": {"gateway": {"enabled": False}},
    "autoscaled gateway": {
        "gateway": {"autoscaling": {"enabled": True, "behavior": {"scaleDown": SLOWLY}}}
    },
    "open gateway": {
        "gateway": {
            "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
            "pdb": {"maxUnavailable": "50%"},
            "corsOrigins": ["https://chat.example"],
        },
        "networkPolicy": {
            "apiFrom": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}],
            "gatewayEgress": [{"ports": [{"port": 4317}]}],
            "monitoringNamespaces": ["monitoring"],
        },
    },
    "every pod setting": dict.fromkeys(COMPONENTS, POD_SETTINGS)
    | {"commonLabels": {"cost": "7"}, "imagePullSecrets": ["registry"]},
    "certificates": {"gateway": {"engineTLS": {"secretName": "pair", "trustDomain": "td.example"}}},
    "own valkey secret": {"valkey": {"auth": {"existingSecret": {"name": "mine", "key": "pw"}}}},
    "external redis": {
        "valkey": {"enabled": False},
        "externalRedis": {
            "url": "rediss://redis.example:6380/0",
            "port": 6380,
            "passwordSecret": {"name": "redis"},
            "caSecret": {"name": "redis-ca"},
        },
    },
    "external redis by secret": {
        "valkey": {"enabled": False},
        "externalRedis": {"urlSecret": {"name": "redis"}},
    },
    "no store": {"valkey": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "all monitoring": {
        "monitoring": {
            "podMonitors": {"enabled": True, "labels": {"release": "prometheus"}},
            "alerts": {"enabled": True, "runbookUrl": "https://docs.example/alerts.md"},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "octavo"}},
        }
    },
    "no crds": {"crds": {"enabled": False}},
    "crds go": {"crds": {"keep": False}},
    "cleanup": {"cleanup": {"enabled": True}, "rbac": {"clusterScoped": False}},
    "registry and digests": {
        "image": {"registry": "registry.example", "tag": "9.9", "pullPolicy": "Always"},
        "operator": {"image": {"digest": "sha256:" + "a" * 64}},
        "engine": {"cuda": {"image": {"registry": "other.example", "tag": "1-cuda"}}},
    },
    "extra objects": {
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}},
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-text\n",
        ]
    },
}
