"""Tasks that answer with text: completions, chats, and generation in Python."""
