"""What is seen of a cluster: failures, stragglers, links, forecasts, the status object."""
