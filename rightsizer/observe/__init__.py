"""The edges that read: Prometheus, the API server, and what is made of their answers.

`prometheus` and `cluster` are the only doors to the two. `signals` turn series into usage, `inventory` objects into the
fleet: `reading` asks for them, or `objectsfile` takes them from a file, page by page reduced to `gathered`;
`resources` and `claims` say what counts as a GPU, `owners` and `gangs` whose it is, `managers` who else decides,
`nodes` and `stranded` what there is and what of it nobody can have, `records` what we changed ourselves.
"""
