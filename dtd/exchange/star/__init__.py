"""The star of parameter servers: contributions go to servers, which return their segments."""
