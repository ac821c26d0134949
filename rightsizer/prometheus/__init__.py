"""The Prometheus HTTP API: connection, credentials, queries, PromQL text, sharding and discovery."""
