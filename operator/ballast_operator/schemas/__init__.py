"""Messages that the client library lacks, in Kafka's schema form."""
