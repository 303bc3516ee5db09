"""Trust and provisioning of NATS spaces."""
