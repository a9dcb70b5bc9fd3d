"""Observation of a cluster: failures, stragglers, links, forecasts, the status object."""
