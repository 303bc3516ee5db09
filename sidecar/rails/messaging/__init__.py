"""The client library of the messaging plane: one member of a space, over its own credential."""
