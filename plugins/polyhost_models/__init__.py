"""The shipped model providers: an offline demo model and OpenAI-compatible HTTP endpoints."""
