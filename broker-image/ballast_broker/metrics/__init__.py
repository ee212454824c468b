"""A broker's counters and measurements, and the page that exposes them."""
