"""Benchmarks on the machine at hand: sweeps of real jobs, the machine's profile, overheads against formulas, figures.

    python -m cmm.bench sweep --ranks 2,4,6 --size 2048 --code fr,uncoded --inject none,slow:1:5 --out results.csv
    python -m cmm.bench profile --out profile.json
    python -m cmm.bench overheads
    python -m cmm.bench plot results.csv --figure scaling.png --profile profile.json

Every figure comes from the report of a job that ran as a user would run it: `mpirun … python -m cmm.run`.
"""
