"""Registration of endpoint instances: contracts, gates, governance, service records, epochs, and the record writer."""
