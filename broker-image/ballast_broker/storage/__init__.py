"""What is on disk: segments, indexes, logs, checkpoints, directories, cleaning, recovery. Formats are Kafka's own."""
