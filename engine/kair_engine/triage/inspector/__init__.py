"""Who is late, and which communicators are slow, by the times of collectives alone, as NCCL's Inspector writes them."""
