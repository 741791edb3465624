"""Context parallelism in JAX, over `jax.shard_map`: what users import. `distributed/plan` makes what it runs."""

from attngen.distributed.jax.context import Attend, Placed, context_parallel

__all__ = ["Attend", "Placed", "context_parallel"]
