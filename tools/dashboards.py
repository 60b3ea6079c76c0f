"""The Grafana dashboards of the chart.

Every expression takes its time range from Grafana and its labels from the variables;
tests/charts/test_monitoring.py checks names and form.
"""

from __future__ import annotations

from tools.dashboard import Dashboard, Panel, quantiles, rate, share, total

GATEWAY = 'namespace=~"$namespace"'
MODEL = 'namespace=~"$namespace",model=~"$model"'
ENGINE = 'namespace=~"$namespace",model_name=~"$model"'

SERVICE = Dashboard(
    name="service",
    title="Service",
    about="What users get: traffic, errors, latencies, and what had to wait.",
    model_metric="octavo_gateway_requests_total/model",
    rows=(
        (
            "Traffic",
            (
                Panel(
                    title="Requests",
                    about="Requests ended a second, by model.",
                    unit="reqps",
                    lines=((rate("octavo_gateway_requests_total", MODEL, "model"), "{{model}}"),),
                ),
                Panel(
                    title="Failures",
                    about="Requests ended a second with an error, by its code. Errors within a "
                    "stream count too, though its HTTP status was 200.",
                    unit="reqps",
                    lines=(
                        (
                            rate(
                                "octavo_gateway_requests_total",
                                f'{GATEWAY},finish=~"OCT-.*"',
                                "finish",
                            ),
                            "{{finish}}",
                        ),
                    ),
                ),
                Panel(
                    title="Tokens",
                    about="Tokens a second: of prompts, of those the cached ones, and generated.",
                    lines=(
                        (rate("octavo_gateway_prompt_tokens_total", MODEL), "prompt"),
                        (rate("octavo_gateway_cached_tokens_total", MODEL), "of those cached"),
                        (rate("octavo_gateway_output_tokens_total", MODEL), "generated"),
                    ),
                ),
            ),
        ),
        (
            "Latency",
            (
                Panel(
                    title="Time to first token",
                    about="Arrival at the gateway to the first token.",
                    unit="s",
                    lines=quantiles("octavo_gateway_time_to_first_token_seconds", MODEL),
                ),
                Panel(
                    title="Between tokens",
                    about="Gap between two deltas of an answer.",
                    unit="s",
                    lines=quantiles("octavo_gateway_inter_token_latency_seconds", MODEL),
                ),
                Panel(
                    title="Whole request",
                    about="Arrival at the gateway to the last token.",
                    unit="s",
                    lines=quantiles("octavo_gateway_request_seconds", MODEL),
                ),
            ),
        ),
        (
            "Held and refused",
            (
                Panel(
                    title="Running requests",
                    about="Requests that run now, over all gateways.",
                    lines=((total("octavo_gateway_requests_in_flight", GATEWAY), "running"),),
                ),
                Panel(
                    title="Held for a first engine",
                    about="Requests a second that waited because their service had no engine, by "
                    "what became of them.",
                    unit="reqps",
                    lines=((rate("octavo_gateway_held_total", GATEWAY, "outcome"), "{{outcome}}"),),
                ),
                Panel(
                    title="Clients that left",
                    about="Requests a second whose client left before the end.",
                    unit="reqps",
                    lines=((rate("octavo_gateway_client_aborts_total", GATEWAY), "left"),),
                ),
                Panel(
                    title="Shed",
                    about="Requests a second that were ended because the gateway's memory ran out.",
                    unit="reqps",
                    lines=(
                        (rate("octavo_gateway_requests_shed_total", GATEWAY, "kind"), "{{kind}}"),
                    ),
                ),
                Panel(
                    title="Event loop",
                    about="How late timers of the gateways fire: above some 50 ms a gateway has "
                    "too much to do.",
                    unit="s",
                    lines=quantiles("octavo_gateway_loop_lag_seconds", GATEWAY),
                ),
                Panel(
                    title="Records",
                    about="Records that wait for the store, and those lost a second.",
                    lines=(
                        (total("octavo_gateway_records_waiting", GATEWAY), "waiting"),
                        (rate("octavo_gateway_records_dropped_total", GATEWAY), "lost a second"),
                    ),
                ),
            ),
        ),
    ),
)

ENGINES = Dashboard(
    name="engines",
    title="Engines and cache",
    about="What engines do: batch, steps, KV blocks, and what the prefix cache saves.",
    model_metric="vllm:num_requests_running/model_name",
    rows=(
        (
            "Work",
            (
                Panel(
                    title="Running and waiting",
                    about="Choices that hold blocks, and requests in the queue.",
                    lines=(
                        (total("vllm:num_requests_running", ENGINE, "pod"), "{{pod}} running"),
                        (total("vllm:num_requests_waiting", ENGINE, "pod"), "{{pod}} waiting"),
                    ),
                ),
                Panel(
                    title="Tokens generated",
                    about="Tokens a second, by engine.",
                    lines=((rate("vllm:generation_tokens_total", ENGINE, "pod"), "{{pod}}"),),
                ),
                Panel(
                    title="Step time",
                    about="Time of one engine step: the grain of every gap between tokens.",
                    unit="s",
                    lines=quantiles("octavo:step_seconds", ENGINE),
                ),
                Panel(
                    title="Tokens in a step",
                    about="Tokens that one step computes, prompts and answers together.",
                    lines=quantiles("vllm:iteration_tokens_total", ENGINE),
                ),
                Panel(
                    title="Queue time",
                    about="Arrival at the engine to the first step.",
                    unit="s",
                    lines=quantiles("vllm:request_queue_time_seconds", ENGINE),
                ),
                Panel(
                    title="Failed steps and slow gateways",
                    about="Steps that raised, and sessions ended because a gateway did not read.",
                    lines=(
                        (rate("octavo:steps_failed_total", ENGINE, "pod"), "{{pod}} failed"),
                        (rate("octavo:slow_consumers_total", ENGINE, "pod"), "{{pod}} slow"),
                    ),
                ),
            ),
        ),
        (
            "KV cache",
            (
                Panel(
                    title="Blocks in use",
                    about="Share of the KV blocks that requests or pins hold. Cached blocks that "
                    "nobody holds do not count.",
                    unit="percentunit",
                    lines=((f"max by (pod) (vllm:kv_cache_usage_perc{{{ENGINE}}})", "{{pod}}"),),
                ),
                Panel(
                    title="Free and pinned blocks",
                    about="Blocks that hold nothing, those that hold a prefix nobody uses now, and "
                    "those that are never evicted.",
                    lines=(
                        (total("octavo:kv_blocks_free", ENGINE, "pod"), "{{pod}} empty"),
                        (total("octavo:kv_blocks_cached_free", ENGINE, "pod"), "{{pod}} cached"),
                        (total("octavo:kv_blocks_pinned", ENGINE, "pod"), "{{pod}} pinned"),
                    ),
                ),
                Panel(
                    title="Hit share",
                    about="Share of the looked-up prompt tokens that the prefix cache had.",
                    unit="percentunit",
                    lines=(
                        (
                            share(
                                "vllm:prefix_cache_hits_total",
                                "vllm:prefix_cache_queries_total",
                                ENGINE,
                                "pod",
                            ),
                            "{{pod}}",
                        ),
                    ),
                ),
                Panel(
                    title="Preemptions",
                    about="Requests a second that lost their blocks to others.",
                    lines=((rate("vllm:num_preemptions_total", ENGINE, "pod"), "{{pod}}"),),
                ),
                Panel(
                    title="Waste by preemption",
                    about="Prompt tokens a second that preempted requests had to find again.",
                    lines=(
                        (
                            rate("octavo:prefix_cache_preempted_hits_total", ENGINE, "pod"),
                            "{{pod}}",
                        ),
                    ),
                ),
                Panel(
                    title="Prompt lengths",
                    about="Prompt tokens of a request.",
                    lines=quantiles("vllm:request_prompt_tokens", ENGINE),
                ),
            ),
        ),
    ),
)

ROUTER = Dashboard(
    name="router",
    title="Router",
    about="How gateways choose engines, and what becomes of requests whose engine is lost.",
    model_metric="octavo_gateway_requests_total/model",
    rows=(
        (
            "Choice",
            (
                Panel(
                    title="Requests by engine",
                    about="Routing decisions a second: how even the load is.",
                    unit="reqps",
                    lines=((rate("octavo_gateway_routes_total", GATEWAY, "engine"), "{{engine}}"),),
                ),
                Panel(
                    title="Predicted and real hits",
                    about="Prompt tokens a second that the router expected to be cached, and that "
                    "were. They drift apart when events of the engines are late.",
                    lines=(
                        (rate("octavo_gateway_predicted_hit_tokens_total", GATEWAY), "predicted"),
                        (rate("octavo_gateway_actual_hit_tokens_total", GATEWAY), "real"),
                    ),
                ),
                Panel(
                    title="Cached share of prompts",
                    about="Share of the prompt tokens that engines did not compute.",
                    unit="percentunit",
                    lines=(
                        (
                            share(
                                "octavo_gateway_cached_tokens_total",
                                "octavo_gateway_prompt_tokens_total",
                                MODEL,
                                "model",
                            ),
                            "{{model}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Engines as the gateways see them",
            (
                Panel(
                    title="States",
                    about="Engines by state, as the gateway that sees most of them counts.",
                    lines=((f"max by (state) (octavo_gateway_engines{{{GATEWAY}}})", "{{state}}"),),
                ),
                Panel(
                    title="Further attempts",
                    about="Attempts a second after the first, by cause.",
                    lines=(
                        (rate("octavo_gateway_retries_total", GATEWAY, "reason"), "{{reason}}"),
                    ),
                ),
                Panel(
                    title="Resumed answers",
                    about="Loss of an engine to the next token of an answer that it had.",
                    unit="s",
                    lines=quantiles("octavo_gateway_resume_seconds", GATEWAY),
                ),
                Panel(
                    title="Dropped deltas",
                    about="Deltas a second that were not delivered: late, repeated, out of order.",
                    lines=(
                        (
                            rate("octavo_gateway_dropped_deltas_total", GATEWAY, "reason"),
                            "{{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Idempotency keys",
                    about="Requests a second that had a key, by what became of them.",
                    lines=(
                        (
                            rate("octavo_gateway_idempotent_requests_total", GATEWAY, "outcome"),
                            "{{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    title="Store",
                    about="Gateways whose Redis or Valkey fails now.",
                    lines=((total("octavo_gateway_store_away", GATEWAY), "without a store"),),
                ),
            ),
        ),
    ),
)

ALL = (SERVICE, ENGINES, ROUTER)
