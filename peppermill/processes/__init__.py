"""Several processes on one job: each takes a part of the data, and what it finds is added up or gathered.

They are those of torch.distributed's process group, where one was initialised; without one, nothing travels.
"""
