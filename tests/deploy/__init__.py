"""Tests of what a cluster installs: chart, image, rules, dashboard, examples."""
