"""The only sockets: links, servers, the driver that runs the cores, the ring's data plane."""
