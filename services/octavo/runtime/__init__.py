"""What engine, gateway and command line share: settings, logs, telemetry, tokenizer, templates."""
