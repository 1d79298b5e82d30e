"""Chrome's JSON as other profilers than PyTorch's write it: Ascend, rocprof, Horovod, Composer."""
