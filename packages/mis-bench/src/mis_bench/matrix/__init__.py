"""Matrix missions: chunk sizes and layouts, swept, confirmed, and resumed after an interruption."""
