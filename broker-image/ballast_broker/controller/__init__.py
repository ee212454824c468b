"""The controller: PURE commands from requests to metadata records, the service around them, and its clients."""
