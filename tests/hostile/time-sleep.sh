sleep infinity
