"""KServe v2, the Open Inference Protocol, over HTTP and gRPC: https://github.com/kserve/open-inference-protocol."""
