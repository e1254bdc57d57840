"""`python -m cmm.simulate design`: flags, evidence, the parameters to use."""

from __future__ import annotations

import argparse

from cmm.codes.fr_paper import read_outer
from cmm.core.errors import UsageError
from cmm.core.grid import Grid
from cmm.simulate.design import EXCESS, Groups, Omega, design_groups, design_omega
from cmm.simulate.experiment import read_tasks
from cmm.simulate.options import read_count, read_number, read_seed
from cmm.simulate.statistics import likelihood_interval
from cmm.simulate.tables import failure, markdown, number


def add(p: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    p.add_argument("--grid", required=True, help="MxN")
    p.add_argument("--tasks", required=True, help="P")
    p.add_argument("--alpha", required=True, help="loss of systematic results, or (paper) N = P - alpha P")
    p.add_argument("--construction", choices=("systematic", "paper"), default="systematic")
    p.add_argument("--outer", help="paper: coded chunks MxN (default: two parities a side)")
    p.add_argument("--bound", default="0.01", help="failures at most, as a share (default 0.01)")
    p.add_argument("--trials", help="that every candidate is tried with (default 40; paper 5)")
    p.add_argument("--seed", default="0", help="of everything drawn (default 0)")
    p.set_defaults(command=main)


def main(options: argparse.Namespace) -> None:
    """Design and print."""
    grid = Grid.parse(options.grid)
    if grid.p != 1:
        raise UsageError("--grid", "must not split the shared dimension", options.grid, f"Use {grid.m}x{grid.n}.")
    tasks, seed = read_tasks(options.tasks), read_seed(options.seed)
    alpha, bound = read_number("--alpha", options.alpha), read_number("--bound", options.bound)
    systematic = options.construction == "systematic"
    if systematic and options.outer is not None:
        raise UsageError("--outer", "goes with --construction paper", options.outer, "Leave it out.")
    trials = read_count("--trials", options.trials or ("40" if systematic else "5"))
    if systematic:
        chosen, evidence = design_groups(grid, tasks, alpha, bound, trials, seed)
        print(f"systematic FR, {grid} grid, K = {grid.K}, P = {tasks}; systematic results lost independently with "
              f"probability {alpha:g}; tried at N = K + {EXCESS}, seed {seed}\n")  # fmt: skip
        print(groups_table(evidence))
        print(f"\nuse  --code fr --param groups={chosen.parameter}")
        return
    outer = read_outer(options.outer, grid)
    best, all_tried = design_omega(grid, tasks, alpha, outer, bound, trials, seed)
    print(f"FR as published, {grid} grid, K = {grid.K}, P = {tasks}, N = {tasks - round(alpha * tasks)}; uniform "
          f"over P, inactivation decoding, seed {seed}\n")  # fmt: skip
    print(omega_table(all_tried))
    print(f"\nuse  --code fr --param construction=paper --param omega={best.polynomial}")


def groups_table(evidence: list[Groups]) -> str:
    """What was predicted and seen."""
    heading = ("groups", "counts", "missing per row ρ", "rule ρ", "subtract", "solve", "decoding work",
               "encoding passes", "failed (likelihood interval)", "")  # fmt: skip
    rows = []
    for g in evidence:
        low, high = likelihood_interval(g.failures, g.trials)
        rows.append((g.parameter, f"{g.counts[0]}x{g.counts[1]}", number(g.rho), number(g.rule), number(g.subtract),
                     number(g.solve), number(g.work), number(g.passes),
                     f"{g.failures} of {g.trials} ({low:.2g} … {high:.2g})", g.note))  # fmt: skip
    return markdown(heading, rows)


def omega_table(evidence: list[Omega]) -> str:
    """What was predicted and seen."""
    heading = ("Ω", "mean degree", "peeling N* (density evolution)", "inactive, predicted", "seen (most)",
               "uncovered, bound", "operations, predicted", "seen", "failed (likelihood interval)",
               "error, median", "max", "")  # fmt: skip
    rows = []
    for p in evidence:
        seen = p.seen
        found = (f"{number(seen.inactivations_mean)} ({seen.inactivations_max})", failure(seen),
                 number(seen.error_median, 2), number(seen.error_max, 2)) if seen else ("–",) * 4  # fmt: skip
        rows.append((p.polynomial, number(p.mean), number(p.peeling, 5), number(p.inactive), found[0],
                     number(p.uncovered, 2), number(p.work), number(p.operations), *found[1:], p.note))  # fmt: skip
    return markdown(heading, rows)
