"""The engine in a process of its own: what travels, the front's side, and the process itself."""
