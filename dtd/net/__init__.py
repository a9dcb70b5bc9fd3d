"""All sockets: links, servers, the driver that runs the cores, and the ring's data plane."""
