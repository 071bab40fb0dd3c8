"""The program that runs on a VM: joins the swarm, streams shards, trains, meters, publishes."""
