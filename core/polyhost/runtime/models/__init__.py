"""The model runtime: routing to adapters, assembly of answers, retries, and failures as facts."""
