"""The flags of dcgm-exporter; fields.txt lists the names of all fields of DCGM. Must not know NVML."""
