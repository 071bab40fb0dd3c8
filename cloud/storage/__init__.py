"""Object storage: streaming shards, the bounded cache, the embedded S3 server, making datasets."""
