"""What a broker counts and measures, and the page that tells of it."""
