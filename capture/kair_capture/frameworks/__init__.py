"""Where frameworks other than PyTorch, and CUPTI, are asked."""
