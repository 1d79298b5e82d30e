"""What ordinary noise would cost a job on more ranks than were recorded."""
