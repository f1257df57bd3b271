"""A folder of results: what was planned and happened, what that comes to, and what it means.

`records` holds what happened; nothing in it is computed. `statistics` and `figures` compute figures from it. Only
`judging` turns figures into a status, a winner or a missed limit, and only `baselines` into a regression: a change of
a verdict is a change of these two. `summary` puts all together, and `rows` shows it.
"""
