"""A folder of results: what was planned and happened, what that comes to, and what it means.

`folder` has it on disk: `plan` is what was to be measured, `records` what happened; nothing in them is computed.
`statistics` and `figures` compute figures from them. Only `judging` turns figures into a status, a winner or a missed
limit, and only `baselines` into a regression: a change of a verdict is a change of these two. `summary` puts all
together, and `rows` shows it.
"""
