"""The coordinator's state and transactions: a pure core, time and entropy come in as arguments."""
