"""What the controller does, one module per family: PURE functions from (context, request) to records and response."""
