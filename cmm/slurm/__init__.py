"""`python -m cmm.slurm`: write the batch script of a job for Slurm, and submit and follow it when asked to.

`options` reads and judges what the user types, `memory` computes what a node has to have, `script` writes the text
(pure: the same request gives the same bytes), `follow` is the only one that talks to Slurm. docs/cluster.md.
"""
