"""What may be done to whom, when, and how much: the policy file, its ordered rules, and what no file can lift. Pure.

    sweeping > values > match | thresholds | limits | marks > rule > document      the file's shape, field by field
    reading (> shadows)                                                 text → document, a line for every problem
    classes                                                             a PriorityClass → a rule
    matching | protections | marks | criteria > rules                   a workload → the ruling on it
    calendar                                                            an instant → may anything be changed
    checks | explain | starting                                         for people

`rules.Rulebook` answers for many workloads; `rules.rule_on` for one.
"""
