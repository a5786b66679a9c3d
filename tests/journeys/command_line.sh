#!/usr/bin/env bash
# The first ten minutes of somebody who writes a model and stays in the shell: pip install 'klover[numpyro]'.
set -euo pipefail

cat >coin.py <<'MODEL'
import numpyro
import numpyro.distributions as dist


def coins(tosses, heads=None):
    """Seven coins of one mint."""
    mean = numpyro.sample("mean", dist.Beta(2, 2))
    numpyro.sample("heads", dist.Binomial(tosses, mean), obs=heads)
MODEL
echo '{"tosses": [10, 10, 10, 10, 10, 10, 10], "heads": [6, 7, 8, 5, 9, 7, 6]}' >coin.json

klover fit coin.py:coins --data coin.json --out first >table.txt 2>notes.txt
cat notes.txt table.txt
grep -q "verdict  *trusted" table.txt
grep -q "^mean," first/summary.csv
klover explain first
# The page about the fit has figures: what brings them is named.
[ -s first/report.html ] || grep -q "klover\[plots\]" notes.txt

# Forgotten data are bad input, said at once: status 2, and the name of what is missing.
echo '{"tosses": [10, 10, 10, 10, 10, 10, 10]}' >tosses.json
status=0
klover fit coin.py:coins --data tosses.json --out second 2>message.txt || status=$?
[ "$status" = 2 ]
grep -q heads message.txt

# The posterior is Beta(2 + 48, 2 + 22): mean 0.676, standard deviation 0.054; the evidence is a ratio of Beta functions.
klover fit coin.py:coins --data coin.json --out third --seed 1 --json >answer.json
python - <<'CHECK'
import json
from math import comb, lgamma, log, sqrt

answer = json.load(open("answer.json"))
row = answer["quantities"]["mean"]
assert answer["verdict"]["trusted"]
assert abs(row["mean"] - 50 / 74) < 0.005
assert abs(row["sd"] - sqrt(50 * 24 / 74**2 / 75)) < 0.005
log_beta = lambda a, b: lgamma(a) + lgamma(b) - lgamma(a + b)
exact = sum(log(comb(10, heads)) for heads in (6, 7, 8, 5, 9, 7, 6)) + log_beta(50, 24) - log_beta(2, 2)
assert abs(answer["figures"]["log_evidence"] - exact) < 0.02
CHECK
