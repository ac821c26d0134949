"""A snapshot as bytes for Prometheus: exposition makes metric families, textformat writes them. Pure."""
