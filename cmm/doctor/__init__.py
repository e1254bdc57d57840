"""`python -m cmm.doctor`: does this site run cmm as it should, and what to change where it does not. docs/cluster.md.

`findings` is what is said, `site` looks at one machine without MPI, `launching` starts small MPI programs (in processes
of their own, with a time limit: an MPI that does not fit can abort or hang), `world` looks at the world that a launcher
has made when the doctor itself runs under one.
"""
