"""The HTTP and gRPC server: OpenAI's protocol for language, KServe's and plain REST for pictures."""
