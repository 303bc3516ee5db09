"""The durable store of a coordinator."""
