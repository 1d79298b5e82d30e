"""What NCCL's RAS (ncclras) prints of a job: how many operations each rank of a communicator has launched."""
