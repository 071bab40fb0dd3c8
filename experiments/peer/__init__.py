"""The peer program, run on each VM: joins the swarm, streams shards, trains, meters egress and publishes records."""
