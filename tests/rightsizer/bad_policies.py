"""Policy files that cannot be meant: each is a good one with one slip. What is said about each stands in golden/."""

GOOD = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults:
  idle: {window: 12h, grace: 1h}
  kinds:
    - {kinds: [Notebook], idle: {window: 2d}, notifyBefore: 4h}
budgets:
  - {scope: namespace, per: hour, gpus: 8, share: 25%}
maintenanceWindows:
  - {days: [mon-fri], from: "22:00", to: "06:00", zone: Europe/Berlin}
freezes:
  - {from: 2026-12-20, to: 2027-01-06, zone: UTC}
protectedNamespaces: [prod-*]
otherControllers: {argo-cd: enforce, helm: advise, flux: protect}
maxSnooze: 3d
notifications:
  - {type: slack, urlFile: /etc/gpu-rightsizer/slack, namespaces: [vision-*], occasions: [notice, failure]}
  - {type: webhook, url: "https://hooks.example.com/gpu", tokenFile: /etc/gpu-rightsizer/token}
respectDoNotDisrupt: [karpenter, volcano]
classAnnotations: class-first
rules:
  - name: production
    match: {priorityClasses: [high-priority], labels: {team: vision-*}}
    mode: protect
  - name: research
    match: {priority: {min: 0, max: 9999}, models: ["*H100*"], nodePools: [gpu-a]}
    mode: enforce
    findings: {stuck: off, too-many-replicas: enforce}
    actions: [scale-up, scale-down, resize, suspend, evict]
    onlyForPendingPods: [evict]
    minReplicas: 1
    minGPUs: 0
    notifyBefore: 30m
    cooldown: 2d
    idle: {window: 2d}
"""
"""Everything that a file can say, once."""


def _with(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, (old, GOOD.count(old))
    return GOOD.replace(old, new)


def _rule(text: str) -> str:
    """Another rule at the end."""
    return GOOD + f"  - {{name: other, {text}}}\n"


def _in_match(text: str) -> str:
    return _rule(f"match: {{{text}}}, mode: enforce")


def _budget(text: str) -> str:
    return _with("{scope: namespace, per: hour, gpus: 8, share: 25%}", text)


def _window(text: str) -> str:
    return _with('{days: [mon-fri], from: "22:00", to: "06:00", zone: Europe/Berlin}', text)


def _freeze(text: str) -> str:
    return _with("{from: 2026-12-20, to: 2027-01-06, zone: UTC}", text)


def _demand(text: str) -> str:
    return _with("maxSnooze: 3d", f"maxSnooze: 3d\ndemand: {{{text}}}")


def _managers(text: str) -> str:
    return _with("{argo-cd: enforce, helm: advise, flux: protect}", text)


def _findings(text: str) -> str:
    return _with("{stuck: off, too-many-replicas: enforce}", text)


def _idle(text: str) -> str:
    return _with("idle: {window: 12h, grace: 1h}", f"idle: {{{text}}}")


BAD = {
    # Selectors that match everything, or nothing.
    "all-namespaces": _in_match('namespaces: ["*"]'),
    "all-namespaces-twice": _in_match('namespaces: ["**"]'),
    "all-namespaces-with-a-letter": _in_match('namespaces: ["?*"]'),
    "all-namespaces-with-three": _in_match('namespaces: ["??*?"]'),
    "all-namespaces-protected-with-a-letter": _with("[prod-*]", '["?*"]'),
    "all-kinds-with-a-letter": _in_match('kinds: ["?*"]'),
    "all-classes-and-none": _in_match('priorityClasses: ["", "?*"]'),
    "all-models-with-a-letter": _in_match('models: ["?*"]'),
    "all-priorities-but-the-lowest": _in_match("priority: {min: -2147483647}"),
    "all-priorities-in-use": _in_match("priority: {min: -1000000000, max: 1000000000}"),
    "learned-from-nothing": _idle("window: learned"),
    "learned-from-too-many-returns": _idle("window: learned, returns: [{after: 4h, percent: 30}]"),
    "learned-beyond-history": _idle("window: learned, history: 7d, returns: [{after: 10d, percent: 1}]"),
    "returns-out-of-order": _idle("returns: [{after: 8h, percent: 5}, {after: 4h, percent: 9}]"),
    "returns-of-a-minute": _idle("returns: [{after: 1m, percent: 5}]"),
    "power-of-everything-with-a-letter": _idle('idlePowerWatts: {"?*": 300}'),
    "gate-of-kueue": _demand("schedulingGates: [kueue.x-k8s.io/admission]"),
    "queue-of-all-jobs": _demand('suspendedJobs: ["*"]'),
    "all-beside-one": _in_match('namespaces: [team-a, "*"]'),
    "all-classes": _in_match('priorityClasses: ["*"]'),
    "all-kinds": _in_match('kinds: ["*"]'),
    "all-models": _in_match('models: ["*"]'),
    "all-pools": _in_match('nodePools: ["*"]'),
    "all-priorities": _in_match("priority: {}"),
    "all-priorities-written-out": _in_match("priority: {min: -2147483648, max: 1000000000}"),
    "all-namespaces-protected": _with("[prod-*]", '["*"]'),
    "no-labels": _in_match("labels: {}"),
    "no-models": _in_match("models: []"),
    "no-pools": _in_match("nodePools: []"),
    "empty-namespace": _in_match('namespaces: [""]'),
    "empty-model": _in_match('models: [""]'),
    "empty-pool": _in_match('nodePools: [""]'),
    "empty-kind": _in_match('kinds: [""]'),
    "nothing-after-a-condition": _in_match("priorityClasses: [low], namespaces: , labels: "),
    "null-beside-a-condition": _in_match("priorityClasses: [low], priority: null"),
    "null-range": _in_match("priority: {min: ~, max: 5}"),
    "nothing-after-everything": _in_match("everything: "),
    "nothing-in-a-list": _in_match("namespaces: [a, ~]"),
    "nothing-after-a-threshold": _with("defaults:", "defaults:\n  stuck:"),
    "nothing-after-a-notice": _with("notifyBefore: 30m", "notifyBefore:"),
    "nothing-after-a-name-that-is-unknown": _with("kind: Policy", "kind: Policy\nmetadata:"),
    "budget-with-nothing-beside-an-amount": _budget("{gpus: 8, share: ~}"),
    "everything-as-text": _in_match('everything: "true"'),
    "everything-as-one": _in_match("everything: 1"),
    "everything-and-models": _in_match("everything: true, models: [a]"),
    "match-is-text": _rule("match: everything, mode: advise"),
    "match-is-a-list": _rule("match: [everything], mode: advise"),
    "match-is-missing": _rule("mode: advise"),
    # Patterns.
    "regular-expression": _in_match("namespaces: [team-.*]"),
    "regular-expression-anchored": _in_match("namespaces: [^team-a$]"),
    "regular-expression-choice": _in_match("namespaces: [a|b]"),
    "regular-expression-class": _in_match('models: ["*[AH]100*"]'),
    "glob-with-braces": _in_match('models: ["*{A,H}100*"]'),
    "name-with-a-blank": _in_match('namespaces: ["team-a "]'),
    "name-too-long": _in_match(f"namespaces: [{'a' * 254}]"),
    "namespace-is-a-number": _in_match("namespaces: [7]"),
    "namespaces-as-text": _in_match("namespaces: team-a"),
    "namespace-that-yaml-reads-as-boolean": _in_match("namespaces: [on]"),
    "class-that-is-null": _in_match("priorityClasses: [~]"),
    "label-as-a-list": _in_match("labels: [team]"),
    "label-key-with-a-blank": _in_match('labels: {"my team": a}'),
    "label-value-a-number": _in_match("labels: {tier: 1}"),
    "label-value-a-boolean": _in_match("labels: {gpu: yes}"),
    "label-value-with-a-slash": _in_match("labels: {team: a/b}"),
    "unknown-condition": _in_match("namespace: [a]"),
    "singular-model": _in_match("model: [a]"),
    # Priorities.
    "priority-as-a-number": _in_match("priority: 1000"),
    "priority-as-text": _in_match('priority: {min: "0"}'),
    "priority-with-a-fraction": _in_match("priority: {min: 0.5}"),
    "priority-not-a-number": _in_match("priority: {min: .nan}"),
    "priority-infinite": _in_match("priority: {max: .inf}"),
    "priority-octal-is-no-surprise": _in_match("priority: {min: 0o10}"),
    "priority-below-all": _in_match("priority: {min: -3000000000}"),
    # What no policy opens, and what is never reached.
    "system-class": _in_match("priorityClasses: [system-node-critical]"),
    "system-classes": _in_match('priorityClasses: ["system-*"]'),
    "system-namespace": _in_match("namespaces: [kube-system]"),
    "namespace-protected-elsewhere": _in_match("namespaces: [prod-eu]"),
    "pattern-protected-elsewhere": _in_match("namespaces: [prod-eu-*]"),
    "never-reached": _rule(
        "match: {priorityClasses: [high-priority], labels: {team: vision-a}}, mode: advise"
    ),
    "never-reached-range": _rule(
        'match: {priority: {min: 5, max: 10}, models: [A-H100-B], nodePools: ["gpu-a"]}, mode: protect'
    ),
    "never-reached-after-everything": _rule("match: {everything: true}, mode: advise")
    + "  - {name: late, match: {kinds: [Job]}, mode: protect}\n",
    # Modes, findings, actions.
    "mode-missing": _rule("match: {kinds: [Job]}"),
    "mode-in-capitals": _rule("match: {kinds: [Job]}, mode: Enforce"),
    "mode-as-boolean": _rule("match: {kinds: [Job]}, mode: on"),
    "mode-as-a-list": _rule("match: {kinds: [Job]}, mode: [advise]"),
    "finding-misspelt": _findings("{idel: enforce}"),
    "finding-of-no-consequence": _findings("{busy: off}"),
    "finding-without-data": _findings("{no-data: enforce}"),
    "finding-with-a-wrong-mode": _findings("{idle: protect}"),
    "finding-on": _findings("{idle: on}"),
    "findings-as-a-list": _findings("[idle]"),
    "input-bound-enforced": _findings("{input-bound: enforce}"),
    "underutilized-enforced": _findings("{underutilized: enforce}"),
    "not-starting-enforced": _findings("{not-starting: enforce}"),
    "wrong-gpu-enforced": _findings("{wrong-gpu: enforce}"),
    "finding-above-its-mode": _with("mode: enforce", "mode: advise"),
    "findings-of-a-protect-rule": _with("mode: protect", "mode: protect\n    findings: {idle: advise}"),
    "sliced-without-the-action": _findings("{oversized-gpu: enforce}"),
    "shrunk-and-never-grown": _findings("{too-many-replicas: enforce, too-few-replicas: off}"),
    "shrunk-without-the-action": _with("[scale-up, scale-down, resize, suspend, evict]", "[suspend, evict]"),
    "action-twice": _with(
        "[scale-up, scale-down, resize, suspend, evict]",
        "[scale-up, scale-down, resize, suspend, scale-down]",
    ),
    "action-unknown": _with(
        "[scale-up, scale-down, resize, suspend, evict]", "[scale-up, scale-down, resize, delete]"
    ),
    "action-with-an-underscore": _with(
        "[scale-up, scale-down, resize, suspend, evict]", "[scale-up, scale-down, resize, scale_to_zero]"
    ),
    "actions-as-text": _with("[scale-up, scale-down, resize, suspend, evict]", "suspend"),
    "min-replicas-without-scale-down": _rule(
        "match: {kinds: [Job]}, mode: enforce, minReplicas: 1, actions: [suspend]"
    ),
    # Only on demand, and who else decides.
    "on-demand-not-among-the-actions": _rule(
        "match: {kinds: [Job]}, mode: enforce, actions: [suspend], onlyForPendingPods: [evict]"
    ),
    "on-demand-grow": _rule("match: {kinds: [Job]}, mode: enforce, onlyForPendingPods: [scale-up]"),
    "on-demand-twice": _rule("match: {kinds: [Job]}, mode: enforce, onlyForPendingPods: [suspend, suspend]"),
    "on-demand-unknown": _rule("match: {kinds: [Job]}, mode: enforce, onlyForPendingPods: [stop]"),
    "on-demand-as-a-switch": _rule("match: {kinds: [Job]}, mode: enforce, onlyForPendingPods: true"),
    "manager-unknown": _managers("{argocd: act}"),
    "manager-another-word": _managers("{flux: skip}"),
    "managers-as-a-list": _managers("[flux]"),
    # Who is told.
    "told-at-no-address": _with('url: "https://hooks.example.com/gpu", ', ""),
    "told-at-two-addresses": _with("{type: slack, ", '{type: slack, url: "https://a.example.com", '),
    "told-by-file": _with("https://hooks.example.com/gpu", "file:///etc/passwd"),
    "told-with-a-password": _with("https://hooks.example.com", "https://me:secret@hooks.example.com"),
    "told-to-the-cloud": _with("https://hooks.example.com/gpu", "http://169.254.169.254/latest/meta-data"),
    "told-by-mail": _with("type: webhook", "type: email"),
    "told-of-nothing": _with("[notice, failure]", "[]"),
    "told-of-something-else": _with("[notice, failure]", "[notice, undo]"),
    "told-of-all-namespaces": _with("namespaces: [vision-*], occ", 'namespaces: ["*"], occ'),
    "snooze-without-unit": _with("maxSnooze: 3d", "maxSnooze: 3"),
    # What stays, notices, cooldowns.
    "min-replicas-negative": _with("minReplicas: 1", "minReplicas: -1"),
    "min-replicas-a-fraction": _with("minReplicas: 1", "minReplicas: 1.5"),
    "min-gpus-a-share": _with("minGPUs: 0", "minGPUs: 10%"),
    "min-gpus-as-text": _with("minGPUs: 0", "minGPUs: one"),
    "min-replicas-misspelt": _with("minReplicas: 1", "minReplica: 1"),
    "min-replicas-a-boolean": _with("minReplicas: 1", "minReplicas: yes"),
    "notice-without-a-unit": _with("notifyBefore: 30m", "notifyBefore: 30"),
    "notice-of-nothing": _with("notifyBefore: 30m", "notifyBefore: 0s"),
    "notice-of-years": _with("notifyBefore: 30m", "notifyBefore: 60w"),
    "cooldown-negative": _with("cooldown: 2d", "cooldown: -2d"),
    "cooldown-in-words": _with("cooldown: 2d", "cooldown: two days"),
    "cooldown-misspelt": _with("cooldown: 2d", "coolDown: 2d"),
    # Thresholds.
    "coverage-in-percent": _idle("minCoverage: 90%"),
    "coverage-of-nothing": _idle("minCoverage: 0"),
    "utilization-of-all": _idle("maxUtilizationPercent: 100"),
    "utilization-negative": _idle("maxUtilizationPercent: -1"),
    "utilization-as-text": _idle('maxUtilizationPercent: "1"'),
    "utilization-infinite": _idle("maxUtilizationPercent: .inf"),
    "power-of-nothing": _idle("idlePowerWatts: {H100: 0}"),
    "power-of-everything": _idle('idlePowerWatts: {"*": 100}'),
    "coverage-of-a-third": _idle("minCoverage: 0.33"),
    "utilization-of-work": _idle("maxUtilizationPercent: 20.1"),
    "traffic-of-work": _idle("maxMemoryTrafficPercent: 99"),
    "power-of-work": _idle("idlePowerWatts: {H100: 401}"),
    "coverage-of-little-where-gpus-are-too-many": _with(
        "defaults:", "defaults:\n  tooManyGpus: {minCoverage: 0.1}"
    ),
    "power-of-a-town": _idle("idlePowerWatts: {H100: 100000}"),
    "history-shorter-than-window": _idle("window: 7d, history: 1d"),
    "notice-before-the-evidence": _idle("window: 24h, noticeAfter: 1h"),
    "return-factor-negative": _idle("idleFactor: -1"),
    "window-of-minutes": _idle("window: 10"),
    "window-iso": _idle("window: PT12H"),
    "grace-of-years": _idle("grace: 53w"),
    "threshold-of-another-finding": _idle("maxMeanPercent: 20"),
    "kind-misspelt-in-defaults": _with("[Notebook]", "[Notebok]"),
    "kinds-missing-in-defaults": _with("kinds: [Notebook], ", ""),
    "saving-of-everything": _with("defaults:", "defaults:\n  tooManyReplicas: {minSavingPercent: 100}"),
    "stuck-at-nothing": _with("defaults:", "defaults:\n  stuck: {minMeanPercent: 0}"),
    # Budgets.
    "budget-of-nothing": _budget("{scope: namespace, per: hour}"),
    "budget-share-as-a-number": _budget("{share: 10}"),
    "budget-share-as-a-ratio": _budget("{share: 0.1}"),
    "budget-share-of-nothing": _budget("{share: 0%}"),
    "budget-share-above-all": _budget("{share: 110%}"),
    "budget-negative": _budget("{gpus: -1}"),
    "budget-a-fraction": _budget("{gpus: 0.5}"),
    "budget-huge": _budget("{gpus: 99999999999999999999}"),
    "budget-scope-unknown": _budget("{scope: team, gpus: 1}"),
    "budget-scope-of-time": _budget("{scope: hour, gpus: 1}"),
    "budget-per-unknown": _budget("{per: week, gpus: 1}"),
    "budget-twice": _with("budgets:", "budgets:\n  - {scope: namespace, per: hour, workloads: 1}"),
    "budget-with-limit": _budget("{limit: 5}"),
    "budgets-as-a-mapping": _with(
        "budgets:\n  - {scope: namespace, per: hour, gpus: 8, share: 25%}", "budgets: {gpus: 8}"
    ),
    # Sharing.
    "trust-by-a-label-without-a-name": _with("maxSnooze: 3d", "sharing: {within: label}"),
    "trust-by-a-label-beside-namespaces": _with("maxSnooze: 3d", "sharing: {label: team}"),
    "trust-in-a-team": _with("maxSnooze: 3d", "sharing: {within: team}"),
    "untrusted-in-one": _with("maxSnooze: 3d", "sharing: {untrusted: {namespaces: [guests]}}"),
    "untrusted-without-conditions": _with("maxSnooze: 3d", "sharing: {untrusted: [{}]}"),
    # Windows and freezes.
    "window-without-begin": _window('{to: "06:00"}'),
    "window-of-no-length": _window('{from: "06:00", to: "06:00"}'),
    "window-in-words": _window('{from: 10pm, to: "06:00"}'),
    "window-at-25": _window('{from: "25:00", to: "06:00"}'),
    "window-after-midnight-of-the-day": _window('{from: "20:00", to: "24:30"}'),
    "window-from-24": _window('{from: "24:00", to: "06:00"}'),
    "window-with-one-digit": _window('{from: "6:00", to: "08:00"}'),
    "window-with-seconds": _window('{from: "06:00:00", to: "08:00"}'),
    "window-as-a-number": _window('{from: 22, to: "06:00"}'),
    "window-day-unknown": _window('{days: [monday], from: "22:00", to: "06:00"}'),
    "window-day-in-capitals": _window('{days: [Mon], from: "22:00", to: "06:00"}'),
    "window-days-as-text": _window('{days: mon-fri, from: "22:00", to: "06:00"}'),
    "window-days-empty": _window('{days: [], from: "22:00", to: "06:00"}'),
    "window-day-as-a-number": _window('{days: [1], from: "22:00", to: "06:00"}'),
    "window-range-open": _window('{days: [mon-], from: "22:00", to: "06:00"}'),
    "zone-unknown": _window('{from: "22:00", to: "06:00", zone: Europe/Berln}'),
    "zone-of-a-city": _window('{from: "22:00", to: "06:00", zone: Berlin}'),
    "zone-abbreviated": _window('{from: "22:00", to: "06:00", zone: CET}'),
    "zone-as-an-offset": _window('{from: "22:00", to: "06:00", zone: "+02:00"}'),
    "zone-that-is-a-folder": _window('{from: "22:00", to: "06:00", zone: America/Argentina}'),
    "zone-that-is-a-path": _window('{from: "22:00", to: "06:00", zone: ../../etc/passwd}'),
    "zone-with-leap-seconds": _window('{from: "22:00", to: "06:00", zone: right/Europe/Berlin}'),
    "zone-empty": _window('{from: "22:00", to: "06:00", zone: ""}'),
    "freeze-backwards": _freeze("{from: 2027-01-06, to: 2026-12-20}"),
    "freeze-without-end": _freeze("{from: 2026-12-20}"),
    "freeze-that-is-no-date": _freeze("{from: 2026-02-30, to: 2026-03-01}"),
    "freeze-the-other-way-round": _freeze("{from: 20.12.2026, to: 06.01.2027}"),
    "freeze-with-a-time": _freeze('{from: "2026-12-20T10:00:00Z", to: 2027-01-06}'),
    "freeze-in-the-far-future": _freeze("{from: 2026-12-20, to: 9999-01-06}"),
    "freeze-as-a-number": _freeze("{from: 20261220, to: 20270106}"),
    "freeze-with-unknown-zone": _freeze("{from: 2026-12-20, to: 2027-01-06, zone: Mars/Olympus}"),
    # The rest of the file.
    "name-missing": _with("name: production\n    match", "match"),
    "name-empty": _with("name: production", 'name: ""'),
    "name-too-long-for-records": _with("name: production", f"name: {'a' * 64}"),
    "name-with-a-line-break": _with("name: production", 'name: "a\\nb"'),
    "name-of-a-class's-rule": _with("name: production", 'name: "priorityclass:high"'),
    "name-as-a-number": _with("name: production", "name: 7"),
    "mark-unknown": _with("[karpenter, volcano]", "[karpenter, vulcano]"),
    "marks-as-boolean": _with("[karpenter, volcano]", "true"),
    "annotations-unknown": _with("class-first", "classes-first"),
    "annotations-on": _with("class-first", "on"),
    "opt-out-as-text": _with("kind: Policy", 'kind: Policy\nrespectOptOut: "true"'),
    "version-beta": _with("v1alpha1", "v1beta1"),
    "version-without-group": _with("gpu-rightsizer.io/v1alpha1", "v1alpha1"),
    "kind-in-capitals": _with("kind: Policy", "kind: POLICY"),
    "metadata-as-kubernetes-has": _with("kind: Policy", "kind: Policy\nmetadata: {name: x}"),
    "spec-as-kubernetes-has": _with("kind: Policy", "kind: Policy\nspec: {}"),
    "rules-as-a-mapping": GOOD[: GOOD.index("rules:")] + "rules: {production: {mode: protect}}\n",
    "rule-as-text": GOOD + "  - protect everything\n",
    "merge-key": _with("mode: protect", "mode: protect\n    <<: {cooldown: 1d}"),
    "indented-by-a-slip": _with("    mode: protect", "   mode: protect"),
    "quotes-left-open": _with("name: production", 'name: "production'),
    "control-character": _with("name: production", "name: pro\x07duction"),
}
