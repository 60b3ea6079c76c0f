"""The alert rules of the chart, and the page that says what to do about each."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from octavo.operator.certificate import NOTICE_S

INTRODUCTION = """\
# Alerts

Made by `make docs` from `tools/alerts.py`; do not edit.

The chart installs these rules as a PrometheusRule where that kind exists (`monitoring.alerts`).
With `monitoring.alerts.runbookUrl` set to this page's address, each alert links to its section.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule.

    Attributes:
        name: its name; also the heading on the page.
        when: the PromQL expression.
        lasting: how long it must hold.
        severity: `critical` wakes somebody up, `warning` waits for the morning.
        summary: one line; may use `{{ $labels.x }}`.
        meaning: what is going on.
        do: what to look at and what to change.
    """

    name: str
    when: str
    lasting: str
    severity: str
    summary: str
    meaning: str
    do: str


ALL = (
    Alert(
        name="OctavoGatewayAbsent",
        when="absent(octavo_gateway_requests_in_flight)",
        lasting="5m",
        severity="critical",
        summary="No gateway is scraped",
        meaning="Prometheus has no figures of any gateway: none runs, or none can be reached.",
        do="Look at the gateway's Deployment; then at `networkPolicy.monitoringNamespaces`, which "
        "must name Prometheus' namespace. All other alerts on gateways are blind meanwhile.",
    ),
    Alert(
        name="OctavoNoRoutableEngine",
        when='sum by (namespace) (octavo_gateway_engines{state="ready"}) == 0'
        " and sum by (namespace) (octavo_gateway_engines) > 0",
        lasting="10m",
        severity="critical",
        summary="No engine is ready, though some exist",
        meaning="Gateways know engines and can send requests to none of them.",
        do="`kubectl get inferenceservices -A` shows the reason of each. If the model is large and "
        "still loading, see OctavoLoadingTooLong.",
    ),
    Alert(
        name="OctavoLoadingTooLong",
        when='max by (namespace) (octavo_gateway_engines{state=~"loading|warming"}) > 0',
        lasting="30m",
        severity="warning",
        summary="An engine has been loading for half an hour",
        meaning="An engine reads its weights or warms up and does not end.",
        do="The engine's log names the stage. A slow volume shows as low read rates on the node; a "
        "model on a shared volume is best loaded once by a `cache.volume`.",
    ),
    Alert(
        name="OctavoDrainStuck",
        when='max by (namespace) (octavo_gateway_engines{state="draining"}) > 0',
        lasting="1h",
        severity="warning",
        summary="An engine has been draining for an hour",
        meaning="A pod was told to end and still has requests, for longer than drains may take.",
        do="Compare `rollout.drainSeconds` with the longest answers. `kubectl delete pod --force` "
        "ends it; its requests then go on elsewhere.",
    ),
    Alert(
        name="OctavoEngineStalled",
        when="vllm:num_requests_waiting + vllm:num_requests_running > 0"
        " and rate(octavo:step_seconds_count[5m]) == 0",
        lasting="2m",
        severity="critical",
        summary="Engine {{ $labels.pod }} has work and makes no steps",
        meaning="The engine's thread hangs. Its watchdog should have ended the process.",
        do="Its log has a stack dump if the watchdog is on (`watchdogSeconds`). Deleting the pod "
        "moves its requests to other engines.",
    ),
    Alert(
        name="OctavoStepsFail",
        when="rate(octavo:steps_failed_total[5m]) > 0",
        lasting="5m",
        severity="warning",
        summary="Steps of engine {{ $labels.pod }} raise errors",
        meaning="Requests are run again alone to find the one that is at fault; all become slower.",
        do="The engine's log has the error and the ids of the requests that got it.",
    ),
    Alert(
        name="OctavoKVExhausted",
        when="min_over_time(vllm:kv_cache_usage_perc[10m]) > 0.95",
        lasting="10m",
        severity="warning",
        summary="The KV cache of {{ $labels.pod }} is full",
        meaning="Requests hold nearly all blocks: new ones wait, and nothing is left to cache.",
        do="Add replicas, give the cache more (`memoryFraction`, `kvBytes`), or bound requests "
        "(`maxModelLen`, `maxNumSeqs`).",
    ),
    Alert(
        name="OctavoPreemptionStorm",
        when="rate(vllm:num_preemptions_total[10m]) > 0.5",
        lasting="10m",
        severity="warning",
        summary="Engine {{ $labels.pod }} preempts requests all the time",
        meaning="Requests take each other's blocks and compute their prompts again.",
        do="Lower `maxNumSeqs`, or add replicas.",
    ),
    Alert(
        name="OctavoHitRateCollapsed",
        when="sum by (namespace, model) (rate(octavo_gateway_cached_tokens_total[30m]))"
        " / sum by (namespace, model) (rate(octavo_gateway_prompt_tokens_total[30m]))"
        " < 0.5 * (sum by (namespace, model)"
        " (rate(octavo_gateway_cached_tokens_total[1d] offset 7d))"
        " / sum by (namespace, model) (rate(octavo_gateway_prompt_tokens_total[1d] offset 7d)))"
        " and sum by (namespace, model)"
        " (rate(octavo_gateway_prompt_tokens_total[1d] offset 7d)) > 10",
        lasting="30m",
        severity="warning",
        summary="The cached share of {{ $labels.model }}'s prompts fell by half in a week",
        meaning="Less of each prompt is found in the engines' caches than a week ago.",
        do="Compare predicted and real hits on the Router dashboard. Equal: the prompts changed, "
        "often a time stamp at their beginning. Apart: engines restart or preempt.",
    ),
    Alert(
        name="OctavoIndexLag",
        # Above nothing: an engine without a prefix cache has no index that could be late.
        when="sum by (namespace, engine) (rate(octavo_gateway_actual_hit_tokens_total[30m]))"
        " / sum by (namespace, engine) (rate(octavo_gateway_predicted_hit_tokens_total[30m]))"
        " < 0.5 > 0 and sum by (namespace, engine)"
        " (rate(octavo_gateway_predicted_hit_tokens_total[30m])) > 100",
        lasting="30m",
        severity="warning",
        summary="{{ $labels.engine }} has under half of what gateways expect in its cache",
        meaning="Requests are sent to where their prompts are thought to be cached, and are "
        "computed there. What gateways know of the engine is late, or blocks go while requests "
        "wait for them, or many requests with one new prompt come at the same moment.",
        do="`events_missed` in the gateways' logs says that they lost events, "
        "`octavo_gateway_loop_lag_seconds` that they need more CPU. With OctavoKVExhausted or "
        "OctavoPreemptionStorm it is the blocks: add replicas, or keep more of them with "
        "`cache.host`.",
    ),
    Alert(
        name="OctavoSlowFirstTokens",
        when="histogram_quantile(0.9, sum by (namespace, model, le)"
        " (rate(octavo_gateway_time_to_first_token_seconds_bucket[1h]))) > 10"
        " and histogram_quantile(0.9, sum by (namespace, model, le)"
        " (rate(octavo_gateway_time_to_first_token_seconds_bucket[5m]))) > 10",
        lasting="5m",
        severity="warning",
        summary="One in ten requests for {{ $labels.model }} waits over 10 s for its first token",
        meaning="It is so over the last hour and still is.",
        do="Queue time on the Engines dashboard says whether capacity is missing; then add "
        "replicas or lower `targetQueueSeconds`.",
    ),
    Alert(
        name="OctavoRequestsFail",
        when="sum by (namespace, model)"
        ' (rate(octavo_gateway_requests_total{finish=~"OCT-50.*"}[10m]))'
        " / sum by (namespace, model) (rate(octavo_gateway_requests_total[10m])) > 0.01",
        lasting="5m",
        severity="critical",
        summary="Over 1 % of the requests for {{ $labels.model }} break",
        meaning="Errors of the service itself, within streams too, where the HTTP status was 200.",
        do="The label `finish` of `octavo_gateway_requests_total` has the code; errors.md says "
        "what each means.",
    ),
    Alert(
        name="OctavoHeldRequestsGiveUp",
        when='sum by (namespace) (rate(octavo_gateway_held_total{outcome!="served"}[10m])) > 0',
        lasting="5m",
        severity="warning",
        summary="Requests that wait for a first engine are not served",
        meaning="A service was asked for while it had no engine, and none came in time.",
        do="`kubectl describe inferenceservice` says why: no room, no image, no model. Else give "
        "requests more time with `gateway.holdSeconds`.",
    ),
    Alert(
        name="OctavoStoreAway",
        when="max by (namespace) (octavo_gateway_store_away) > 0",
        lasting="5m",
        severity="warning",
        summary="A gateway cannot reach its Redis or Valkey",
        meaning="Requests are served all the same. Records wait in memory, then they are lost; "
        "answers to repeated requests are known to one gateway only.",
        do="Look at the Valkey pod, or at the address and password of `externalRedis`. After a "
        "change of their Secret, restart the Deployments of Valkey and the gateways.",
    ),
    Alert(
        name="OctavoOperatorAbsent",
        when="absent(octavo_operator_waiting)",
        lasting="10m",
        severity="warning",
        summary="No operator is scraped",
        meaning="Prometheus has no figures of any operator. Engines and gateways serve without it, "
        "but nothing is started, scaled or reported.",
        do="Look at the operator's Deployment; then at `networkPolicy.monitoringNamespaces`.",
    ),
    Alert(
        name="OctavoOperatorNotReconciling",
        when="max by (namespace) (octavo_operator_overdue_seconds) > 60",
        lasting="5m",
        severity="warning",
        summary="InferenceServices wait over a minute for the operator",
        meaning="All workers are busy, most often waiting for the API server.",
        do="`octavo_operator_reconciles_total` by `result` says how looks end, the operator's log "
        "why. The CPU that it gets is `operator.resources`.",
    ),
    Alert(
        name="OctavoServiceNotReady",
        when="octavo_operator_service_ready == 0",
        lasting="30m",
        severity="warning",
        summary="InferenceService {{ $labels.namespace }}/{{ $labels.name }} is not ready",
        meaning="It has not been ready for half an hour, though it is to have engines.",
        do="`kubectl describe inferenceservice` has the reason as a sentence.",
    ),
    Alert(
        name="OctavoServiceUnreachable",
        when="octavo_operator_service_routable == 0",
        lasting="5m",
        severity="critical",
        summary="No gateway reaches an engine of {{ $labels.namespace }}/{{ $labels.name }}",
        meaning="Engines of the InferenceService have loaded their model, and no gateway can send "
        "requests to any of them: clients get 503.",
        do="Its condition `Routable` has the reason in a gateway's words. Certificates that have "
        "ended or are of another authority, a NetworkPolicy in the way, and gateways that do not "
        "run are the usual ones.",
    ),
    Alert(
        name="OctavoCertificateEnds",
        when="octavo_gateway_certificate_expiration_timestamp_seconds - time() "
        f"< {NOTICE_S:.0f} or octavo:certificate_expiration_timestamp_seconds - time() "
        f"< {NOTICE_S:.0f}",
        lasting="1h",
        severity="warning",
        summary="The certificate of {{ $labels.pod }} ends within a week",
        meaning="After its end no new connection between gateways and engines is made: what is "
        "open goes on, and requests get 503 when it breaks.",
        do="Put another certificate into the Secret: `gateway.engineTLS.secretName` of the "
        "release, or `spec.engine.tls.secretName` of the service. With cert-manager look at the "
        "Certificate: it should have been renewed long ago. Pods take it within about a minute, "
        "and need no restart.",
    ),
    Alert(
        name="OctavoCertificateBad",
        when="octavo_gateway_certificate_bad == 1 or octavo:certificate_bad == 1",
        lasting="10m",
        severity="critical",
        summary="{{ $labels.pod }} cannot use the newest certificate in its Secret",
        meaning="The certificate has ended, is not that of the key, or cannot be read. If one "
        "before is still good, the process goes on with it until it is restarted.",
        do="The log of the pod has `certificate_bad` with the reason. Put a whole set of "
        "`tls.crt`, `tls.key` and `ca.crt` into the Secret.",
    ),
    Alert(
        name="OctavoRecordsDropped",
        when="sum by (namespace) (rate(octavo_gateway_records_dropped_total[10m])) > 0",
        lasting="5m",
        severity="warning",
        summary="Records of requests are lost",
        meaning="The store was away for longer than gateways can keep records.",
        do="As with OctavoStoreAway. Nobody's request failed by it.",
    ),
)


def rules() -> str:
    """Returns the groups of a PrometheusRule as YAML."""
    group = {
        "name": "octavo",
        "rules": [
            {
                "alert": alert.name,
                "expr": alert.when,
                "for": alert.lasting,
                "labels": {"severity": alert.severity},
                "annotations": {"summary": alert.summary, "description": alert.meaning},
            }
            for alert in ALL
        ],
    }
    head = "# Made by `make docs` from tools/alerts.py; do not edit.\n"
    return head + yaml.safe_dump({"groups": [group]}, sort_keys=False, width=100)


def page() -> str:
    """Returns the page of all alerts."""
    return INTRODUCTION + "".join(
        f"\n## {alert.name}\n\n{alert.summary.replace('{{ $labels.', '').replace(' }}', '')}."
        f" *{alert.severity}, after {alert.lasting}*\n\n```\n{alert.when}\n```\n\n"
        f"{alert.meaning} {alert.do}\n"
        for alert in ALL
    )
