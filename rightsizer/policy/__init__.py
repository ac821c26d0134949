"""The policy: what may be done to which workloads, when, and how much. Pure, except reading the file.

values > match | thresholds | limits > rule > schema      the schema of the file
policy_file                                               text → policy; every problem with its line
classes                                                   a PriorityClass → a rule
protections | do_not_disrupt > effective                  a workload → its EffectivePolicy
explain                                                   for people
"""
