"""Where bodies become requests and texts become tokens: decoding, and processes that can be killed."""
