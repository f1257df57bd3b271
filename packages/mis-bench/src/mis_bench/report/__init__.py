"""One page of all that was measured: artifacts in, a self-contained HTML page or Markdown out."""
