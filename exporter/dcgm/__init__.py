"""What dcgm-exporter and DCGM call things: their flags, and the names of all of their fields. Pure tables."""
