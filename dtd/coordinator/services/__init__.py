"""Services of the coordinator beside training: sweeps, registered models, audit, web page."""
