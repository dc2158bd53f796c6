"""One run: from its directory through the loop to its end."""
