"""What runs a schedule with torch.distributed: messages, sums of parts, autograd, and the region that adapters look at.

Takes a schedule of `distributed/plan`. `attngen.distributed` has what users import.
"""
