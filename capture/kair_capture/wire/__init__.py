"""What agents and the coordinator say to each other: small datagrams, each signed with the job's key."""
