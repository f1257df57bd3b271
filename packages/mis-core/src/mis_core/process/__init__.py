"""The engine in a process of its own: the protocol, the front's side, and the process itself."""
