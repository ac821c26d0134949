"""One script per published figure; `make bench` runs them all."""
