"""Direct HTTP/1.1 over plain or TLS sockets: parser, exchange, connection pools, TLS."""
