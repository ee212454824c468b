"""Messages that the client library lacks, in the format of Kafka's schemas."""
