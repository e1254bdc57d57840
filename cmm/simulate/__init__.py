"""Codes without a cluster: Monte Carlo of recovery, thresholds and errors; latency under models of workers; design.

    import cmm.simulate as sim
    code = sim.CodeSpec("fr", "80x80", 10000, (("groups", "sparse"),))
    point = sim.Experiment("threshold", code, sim.Arrival("systematic", 0.1), errors=True)
    store = sim.sweep([point], trials=20, store=sim.Store("fr.csv"))
    store.total(point).threshold_quantile(0.5)

The same code, decoder and coordinator objects as in the MPI runtime; nothing here imports MPI. See docs/simulator.md.
"""

from cmm.simulate.arrivals import Arrival
from cmm.simulate.density import Array2D, inactivations, peeling_threshold, uncoverable
from cmm.simulate.design import design_groups, design_omega
from cmm.simulate.experiment import CodeSpec, Experiment
from cmm.simulate.latency import Latency, LatencyResult, LatencyStore, run_latency
from cmm.simulate.profile import MachineProfile
from cmm.simulate.recovery import Trial, run, run_trial
from cmm.simulate.statistics import Batch, Stats, Store, likelihood_interval, merged
from cmm.simulate.sweep import sweep
from cmm.simulate.workers import Population, parse_models

__all__ = [
    "Array2D",
    "Arrival",
    "Batch",
    "CodeSpec",
    "Experiment",
    "Latency",
    "LatencyResult",
    "LatencyStore",
    "MachineProfile",
    "Population",
    "Stats",
    "Store",
    "Trial",
    "design_groups",
    "design_omega",
    "inactivations",
    "likelihood_interval",
    "merged",
    "parse_models",
    "peeling_threshold",
    "run",
    "run_latency",
    "run_trial",
    "sweep",
    "uncoverable",
]
