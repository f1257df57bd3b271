"""Whether a folder proves what it says: files that must be there, counts that were promised, figures computed anew."""
