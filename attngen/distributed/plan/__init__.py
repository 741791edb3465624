"""Who holds which rows, what is computed where, and what is sent: values in plain Python and NumPy, and no framework.

Takes a kernel's visits, sequences and layouts; returns schedules, the steps of each rank, tables for a program that all
ranks share, a proof, an estimate and what the command line prints. `distributed/torch` and `distributed/jax` run them.
"""
