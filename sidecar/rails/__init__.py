"""The endpoint rails: the Cotal wire contract on NATS."""
