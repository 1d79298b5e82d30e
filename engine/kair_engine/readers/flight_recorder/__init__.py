"""PyTorch Flight Recorder dumps: which collectives each rank called, and how far they came."""
