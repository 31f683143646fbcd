"""HTTP: requests → calls of the core, and answers; Server-Sent Events and WebSockets."""
