"""Object storage: shard streaming, the bounded cache, the embedded S3 server, and creation of data sets."""
