"""The `octavo` command: serve on this machine, chat, look at the configuration."""
