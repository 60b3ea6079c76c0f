"""The engine's settings. Nothing else in the engine reads arguments or the environment."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One model on one replica."""

    model: str = setting(
        "smollm2", "Known name, folder with safetensors, .gguf file or hub id of the model."
    )
    revision: str = setting("", "Revision of a hub model; empty takes the newest.")
    verify_model: bool = setting(
        False,
        "Hash the files of a model that the loader brought before it is used, about a second per "
        "GB; their sizes are compared always.",
    )
    served_name: tuple[str, ...] = setting(
        (), "Names that requests may use, comma-separated; empty takes the model's own name."
    )
    listen: str = setting(
        "127.0.0.1:50051",
        "Address of the gRPC server; other than loopback or unix:PATH needs --tls-dir or "
        "--plaintext. 0.0.0.0 and [::] are both all addresses, IPv4 and IPv6.",
    )
    tls_dir: str = setting(
        "",
        "Folder with tls.crt, tls.key and ca.crt, as a Secret of type kubernetes.io/tls is "
        "mounted: the gRPC server then takes mTLS only. Files that are replaced count from the "
        "next connection on.",
    )
    tls_client: str = setting(
        "",
        "Name, a URI such as spiffe://cluster.local/ns/octavo/sa/octavo-gateway or a DNS name, "
        "that the certificate of whoever calls must bear; required with --tls-dir.",
    )
    plaintext: bool = setting(
        False,
        "Lets --listen be an address that others reach. Whoever reaches it may use the engine and "
        "read what it serves: something else, such as a NetworkPolicy, has to keep strangers out.",
    )
    metrics_listen: str = setting(
        "127.0.0.1:9091",
        "Address of /healthz, /readyz and /metrics, which tell nothing of requests; port 0 takes a "
        "free one, empty turns it off. 0.0.0.0 and [::] are as with --listen.",
    )
    dtype: str = setting(
        "bfloat16", "Compute type; bfloat16 halves memory traffic.", choices=("bfloat16", "float32")
    )
    memory_fraction: float = setting(
        0.25,
        "Share of the memory free after loading that the KV cache takes.",
        minimum=0.01,
        maximum=0.95,
    )
    kv_bytes: int = setting(
        0,
        "Size of the KV cache; 0 takes memory_fraction of the free memory, at most what "
        "max_num_seqs requests of max_model_len need.",
        unit="bytes",
        minimum=0,
    )
    max_model_len: int = setting(
        0,
        "Prompt plus output of one choice; 0 takes what model and KV cache allow.",
        unit="tokens",
        minimum=0,
    )
    max_num_seqs: int = setting(64, "Choices that run at once.", minimum=1, maximum=1024)
    max_batched_tokens: int = setting(
        512,
        "Token budget of one step: larger is more throughput, smaller is steadier latency.",
        unit="tokens",
        minimum=16,
        maximum=65536,
    )
    step_target_s: float = setting(
        0.25,
        "Time that the prompt chunks of a step may take, as measured; cuts max_batched_tokens on "
        "slow machines so that neighbours' tokens keep flowing. 0 bounds tokens only.",
        unit="s",
        minimum=0,
    )
    long_prefill_tokens: int = setting(
        256, "Largest prompt chunk of one request while others run.", unit="tokens", minimum=16
    )
    prefix_caching: bool = setting(True, "Reuse the KV blocks of common prefixes.")
    pin_budget: float = setting(
        0.25,
        "Share of the KV blocks that pinned prefixes may take; less where a request of "
        "max_model_len would not fit beside them.",
        minimum=0.0,
        maximum=0.9,
    )
    pin_prefix: str = setting(
        "",
        "File of prefixes that are computed and pinned before the engine is ready: a line each, "
        'such as {"messages": [{"role": "system", "content": "..."}]} or {"text": "..."}, with '
        "cache_salt and ttl_s if wanted.",
    )
    host_cache_bytes: int = setting(
        0,
        "Host memory for blocks that the KV cache evicts and for requests that are swapped out; 0 "
        "has none, so that evicted blocks are gone and preempted requests compute again.",
        unit="bytes",
        minimum=0,
    )
    disk_cache_dir: str = setting(
        "",
        "Folder for blocks that host memory evicts; they outlive the engine, and hold what prompts "
        "were made of, so only its user can read it. Needs --host-cache-bytes and "
        "--prefix-caching. Empty has none.",
    )
    disk_cache_bytes: int = setting(
        10_000_000_000,
        "Size of the blocks in that folder, least recently used given up first. Engines that "
        "share a folder share blocks, and each keeps to this bound by itself.",
        unit="bytes",
        minimum=1,
    )
    preemption_mode: str = setting(
        "auto",
        "What becomes of a preempted request: swap copies its blocks to host memory and back, "
        "recompute gives them up, auto takes what was measured to be faster. Without room in host "
        "memory it is computed again.",
        choices=("auto", "swap", "recompute"),
    )
    watermark: float = setting(
        0.0,
        "Share of the blocks kept free at admission while anything runs.",
        minimum=0.0,
        maximum=0.5,
    )
    max_queued_requests: int = setting(
        1024, "Requests waiting or running beyond which new ones get 503.", minimum=1
    )
    max_queued_tokens: int = setting(
        1_000_000,
        "Prompt tokens waiting beyond which new requests get 503.",
        unit="tokens",
        minimum=1,
    )
    scheduling_policy: str = setting(
        "priority",
        "Order in which waiting requests are let in: by priority, then arrival; fcfs by arrival "
        "alone, and priorities are refused; shortest by priority, then length, with ageing; fair "
        "by priority, then by what the fairness key was served.",
        choices=("priority", "fcfs", "shortest", "fair"),
    )
    ageing_s_per_token: float = setting(
        0.01,
        "Under the policy shortest: waiting that outweighs one token to compute. A prompt of 1,000 "
        "tokens lets shorter ones pass that come up to 10 s after it.",
        unit="s",
        minimum=1e-6,
        maximum=60.0,
    )
    max_preemptions: int = setting(
        3,
        "Times that a request may lose its blocks. Then it waits until all that it may become has "
        "room, and keeps its blocks to the end. 0 sets no bound.",
        minimum=0,
    )
    max_output_tokens: int = setting(
        0,
        "Output that one choice gets at most: max_tokens above it is lowered to it. 0 sets no "
        "bound.",
        unit="tokens",
        minimum=0,
    )
    threads: int = setting(
        0,
        "Threads of a step; 0 takes the cores that affinity and cgroup allow.",
        minimum=0,
        maximum=1024,
    )
    watchdog_s: float = setting(
        60.0,
        "A step that lasts longer ends the process with a stack dump; 0 turns it off.",
        unit="s",
        minimum=0,
    )
    drain_s: float = setting(
        30.0, "Time that running requests get to end after SIGTERM.", unit="s", minimum=0
    )
    report_fd: int = setting(
        -1, "File descriptor that gets one JSON line per start-up stage; -1 writes none."
    )
