"""What a broker and its topics and groups can be told: properties, their values and where those come from."""
