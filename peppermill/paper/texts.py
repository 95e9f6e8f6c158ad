"""What docs/paper.md says between its tables."""

from __future__ import annotations

OPENING = """\
# The paper, reproduced

Mehrtash et al., *PEP: Parameter Ensembling by Perturbation* (NeurIPS 2020), Section 3: our numbers beside
the printed ones. This page is written by `peppermill paper document` from `results/paper/*.json`, which hold
every cell for every seed; nothing on it was typed by hand."""

OURS = """\
PEP with T: σ and T tuned together, on the paper's layers and on all kernels. PEP, antithetic: members in
pairs +ε, −ε, on the paper's layers. PEP, all kernels: every convolution and dense kernel is perturbed. 10
members while tuning, 25 at the test (24 in pairs). The smallest mean of each row is bold."""

JOINT = """\
Test NLL of the joint method less that of temperature scaling and of PEP: the mean over models of the paired
difference, with its 95 % interval (Student's t). Below zero the joint method is better; ✗ where it is not."""

SWA = """\
The paper gives no schedule for stochastic weight averaging. These are candidates: *plain* averages the
baseline's own epochs from `start` to 15; *fixed* trains at another learning rate from the first epoch on;
*constant* moves to another learning rate by epoch 10 and averages epochs 11 to 15; *cyclic* averages the ends
of three-epoch cycles from `high` to `low`; *longer* trains 15 epochs more and averages them;
*sgd* is *constant* with SGD in place of Adam. Batch-norm
statistics are computed anew, or, with `refresh=0`, averaged like the weights. Distance: the mean of
|ours − printed| / printed over the four scores."""

FIGURE3 = """\
Overfitting is the test NLL less the training loss of that epoch, the PEP effect the test NLL of the network
less that of its ensemble; every kernel is perturbed. All points are shown, also those that the authors left
out (negative overfitting, σ* ≤ 0.001). Spearman's correlation, with its 95 % interval (Bonett and Wright) as if the
points were independent:"""

OOD = """\
The divergence is that of the predictive entropies of test images from the five known and the five unknown
classes. The paper does not say how it estimated its divergence, so the two columns need not be on one scale;
AUROC and FPR95 use the entropy as the score."""

SWA_COLUMN = """\
The paper gives no schedule of SWA. Of those that were tried (see SWA below) `sgd:first=0.1,swa=0.01` comes nearest to
the printed column: the rule of Izmailov et al., with SGD in place of Adam, at 0.1 until epoch 6, then in a line to 0.01
by epoch 10; the weights after epochs 11 to 15 are averaged, and batch-norm statistics computed anew. Averages of Adam's
own epochs lie further from it."""

RATES = """\
The authors' notebook sets a learning rate of 2.5e-4 for the networks without dropout, but it found them trained and
skipped the training; for those with dropout it sets 5e-4. What it shows of its networks fits 5e-4: their temperatures
and σ*, and their test NLL after the first epoch, where none of our five that learn at 2.5e-4 has come so far. So this
row learns at 5e-4; that was found after its cells at 2.5e-4 had been seen to differ. The other three rows of networks
like these agree at 2.5e-4, which stands there."""

CELLS = """\
In each cell: ours, mean ± population standard deviation over the models (deep ensembles: over draws); below it the
printed one; ✗ where they differ by more."""

SETTINGS = """\
## Settings of Table 2

The text of the paper leaves many settings out; they were taken from the authors' public scripts.

| | MNIST MLP | MNIST CNN, Fashion MNIST | CIFAR-10, CIFAR-100 |
|---|---|---|---|
| layers | 3 × [dense 200, ReLU, BN], dense 10 | conv 32, conv 64 (3×3, valid), max-pool, dense 128, dense 64, each \
with ReLU then BN; dense 10 | conv 16 same, conv 16 valid, max-pool, conv 32 same, conv 32 valid, max-pool, dense 128, \
each with ReLU then BN; dense 10 or 100 |
| batch norm (torch's momentum) | ε 1e-3, 0.01 | ε 1e-3, 0.1 | ε 1e-3, 0.1 |
| Adam (ε 1e-7), batch 128, 15 epochs | 2.5e-3 | 5e-4 for MNIST (see there), 2.5e-4 for Fashion MNIST | 2.5e-4 |
| ... with dropout 0.5 | 2.5e-3 | 5e-4 | 5e-4 |
| training, validation, test | 50,000, 10,000, 10,000 | 50,000, 10,000, 10,000 | 45,000, 5,000, 10,000 |
| perturbed by PEP | the three hidden kernels | conv 2, dense 128, dense 64 | dense 128 |
| members while tuning, at test | 10, 25 | 5, 25 | 10, 25 |

σ is searched in 0 to 0.1 by ten golden-section iterations; σ* is the midpoint of the bracket at the start of the tenth.
MC dropout: 25 passes. Deep ensembles: 10 of the 25 networks, 100 draws. ECE: 20 bins. Seeds 17 to 41."""
