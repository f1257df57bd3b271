"""Where texts become tokens: processes that can be ended."""
