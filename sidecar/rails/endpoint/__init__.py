"""The endpoint rails (C13): envelopes, contracts, calls and serving."""
