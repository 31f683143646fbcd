"""What the papers plotted, measured here: `tocsin report papers`.

========== ========================================================================================
outcome    what an experiment is and what it gives: rows, plots, findings; how large it may be
timing     matchers that are filled step by step, and processor time for an event
fabret     Fabret et al. 2000, figure 3 and section 6.2.2
adaptivity Fabret et al. 2000, figure 4
aguilera   Aguilera et al. 1999: growth of the matching tree, and its optimisations
zhao       Zhao and Wu 2011, figures 6 to 12
jayaram    Jayaram et al. 2015: matching, look-ups, updates against re-subscription
papers     the list of papers; runs the experiments and writes page and tables
page       outcomes → one HTML page
========== ========================================================================================

To add a paper or a figure, write an `Experiment` and name it in `papers.PAPERS`.
"""
