"""Figures of the daemons for Prometheus."""
