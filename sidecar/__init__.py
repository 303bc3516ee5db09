"""Sidecar: durable work and endpoint rails next to every nats-server."""

__version__ = "0.1.0"
