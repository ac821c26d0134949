{{/*
Permissions that follow from the policy in values, as in rightsizer.guardrails: kinds, evictions and namespaces. The permissions
of each kind are in files/rights.json and files/admission.json, which are generated from the program.
*/}}

{{/* The policy file as YAML: the user's, or, without one, a policy that follows the PriorityClasses of this chart. */}}
{{- define "gpu-rightsizer.policy" -}}
{{- if .Values.rightsizer.policy -}}
{{ toYaml .Values.rightsizer.policy }}
{{- else if .Values.priorityClasses.gpus -}}
# As deploy/examples/policy-by-class.yaml: annotations of PriorityClasses come first; everything else gets only advice.
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
classAnnotations: class-first
rules:
- name: without-a-word
  match: {everything: true}
  mode: advise
{{- end -}}
{{- end }}

{{/* The chart's PriorityClasses that protect their pods under every rule, as JSON. */}}
{{- define "gpu-rightsizer.protectedClasses" -}}
{{- $policy := include "gpu-rightsizer.policy" . | fromYaml -}}
{{- $word := toString (get $policy "classAnnotations") -}}
{{- $heeded := not (has $word (list "off" "false")) -}}
{{- if ne $word "class-first" -}}
{{- range $policy.rules | default list }}{{ if or .match.everything (eq .mode "enforce") }}{{ $heeded = false }}{{ end }}{{ end -}}
{{- end -}}
{{- $found := list -}}
{{- range $gpu := .Values.priorityClasses.gpus -}}
{{- range $level := list "high" "medium" "low" -}}
{{- $class := include "gpu-rightsizer.class" (list $ $gpu $level) | fromJson -}}
{{- if and $heeded (eq (get $class.policy "mode") "protect") }}{{ $found = append $found (printf "%s-priority-%s" $level $gpu.name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end }}

{{/* The class of a GPU model and level, with overrides of the model, as JSON: (list $ GPU LEVEL). */}}
{{- define "gpu-rightsizer.class" -}}
{{- $own := get ((index . 1).levels | default dict) (index . 2) | default dict -}}
{{- $class := mergeOverwrite (deepCopy (get (index . 0).Values.priorityClasses.levels (index . 2))) $own -}}
{{- if (index . 0).Values.priorityClasses.waitForIdle }}{{ $_ := set $class "preemptionPolicy" "Never" }}{{ end -}}
{{- $class | toJson -}}
{{- end }}

{{/* A glob as an anchored regular expression. */}}
{{- define "gpu-rightsizer.regex" -}}
^{{ regexReplaceAll "[.+]" . "[${0}]" | replace "*" ".*" | replace "?" "." }}$
{{- end }}

{{/* Whether any pattern matches any name: (list NAMES PATTERNS); empty if none does. */}}
{{- define "gpu-rightsizer.matches" -}}
{{- $names := index . 0 -}}
{{- $found := "" -}}
{{- range index . 1 -}}
{{- $regex := include "gpu-rightsizer.regex" . -}}
{{- range $names }}{{ if regexMatch $regex . }}{{ $found = "yes" }}{{ end }}{{ end -}}
{{- end -}}
{{- $found -}}
{{- end }}

{{/* Enabled changes as JSON: acts, kinds (names), evicts, wouldEvict (if act were true), everywhere, namespaces. */}}
{{- define "gpu-rightsizer.enabled" -}}
{{- $rights := .Files.Get "files/rights.json" | fromJson -}}
{{- $policy := include "gpu-rightsizer.policy" . | fromYaml -}}
{{- $rules := list -}}
{{- range $policy.rules | default list }}{{ if eq .mode "enforce" }}{{ $rules = append $rules . }}{{ end }}{{ end -}}
{{- $word := toString (get $policy "classAnnotations") -}}
{{- $reached := not (empty $policy.rules) -}}
{{- range $policy.rules | default list }}{{ if .match.everything }}{{ $reached = false }}{{ end }}{{ end -}}
{{- $classes := or (eq $word "class-first") (and $reached (not (has $word (list "off" "false")))) -}}
{{- $wouldEvict := $classes -}}
{{- range $rules -}}
{{- if has "evict" (.actions | default $rights.safeActions) -}}
{{- if or (not .match.kinds) (include "gpu-rightsizer.matches" (list $rights.podNames .match.kinds)) }}{{ $wouldEvict = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $byClass := and .Values.rightsizer.act $classes -}}
{{- if not .Values.rightsizer.act }}{{ $rules = list }}{{ end -}}
{{- $asked := $rights.askedKinds -}}
{{- $defaults := $policy.defaults | default dict -}}
{{- if hasKey $defaults "kinds" -}}
{{- $asked = list -}}
{{- range $defaults.kinds }}{{ if .notifyBefore }}{{ $asked = concat $asked .kinds }}{{ end }}{{ end -}}
{{- end -}}
{{- $asksPods := include "gpu-rightsizer.matches" (list $rights.podNames $asked) -}}
{{- $evicts := and .Values.rightsizer.act $wouldEvict -}}
{{- $everywhere := $byClass -}}
{{- $namespaces := list -}}
{{- range $rules -}}
{{- if not .match.namespaces }}{{ $everywhere = true }}{{ end -}}
{{- range .match.namespaces | default list -}}
{{- if regexMatch "[*?]" . }}{{ $everywhere = true }}{{ end -}}
{{- $namespaces = append $namespaces . -}}
{{- end -}}
{{- end -}}
{{- $kinds := list -}}
{{- range $kind := $rights.kinds -}}
{{- $open := $byClass -}}
{{- range $way := $kind.openings -}}
{{- range $rule := $rules -}}
{{- $does := false -}}
{{- range $rule.actions | default $rights.safeActions }}{{ if has . $way.actions }}{{ $does = true }}{{ end }}{{ end -}}
{{- $about := or (not $way.about) (not $rule.match.kinds) (include "gpu-rightsizer.matches" (list $way.about $rule.match.kinds)) -}}
{{- $asks := or (not $way.asking) $asksPods $rule.notifyBefore -}}
{{- if and $does $about $asks }}{{ $open = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if $open }}{{ $kinds = append $kinds $kind.name }}{{ end -}}
{{- end -}}
{{- with .Values.rbac.namespaces -}}
{{- $only := list -}}
{{- range . }}{{ if or $everywhere (has . $namespaces) }}{{ $only = append $only . }}{{ end }}{{ end -}}
{{- $everywhere = false -}}
{{- $namespaces = $only -}}
{{- end -}}
{{- dict "acts" (or $byClass (not (empty $rules))) "kinds" $kinds "evicts" $evicts "wouldEvict" $wouldEvict "everywhere" $everywhere "namespaces" (uniq $namespaces | sortAlpha) | toJson -}}
{{- end }}

{{/* Rules of a role, grouped as in the program: a list of rights. */}}
{{- define "gpu-rightsizer.rules" -}}
{{- $verbs := dict -}}
{{- $order := list -}}
{{- range . -}}
{{- $key := printf "%s %s %s" .group .resource (join "," .names) -}}
{{- if not (hasKey $verbs $key) }}{{ $order = append $order $key }}{{ end -}}
{{- $_ := set $verbs $key (append (get $verbs $key | default list) .verb | uniq) -}}
{{- end -}}
{{- $groups := list -}}
{{- $resources := dict -}}
{{- range $order -}}
{{- $parts := splitn " " 3 . -}}
{{- $key := printf "%s %s %s" $parts._0 (get $verbs . | join ",") $parts._2 -}}
{{- if not (hasKey $resources $key) }}{{ $groups = append $groups $key }}{{ end -}}
{{- $_ := set $resources $key (append (get $resources $key | default list) $parts._1) -}}
{{- end -}}
{{- range $groups }}
{{- $parts := splitn " " 3 . }}
- apiGroups: [{{ $parts._0 | quote }}]
  resources: [{{ get $resources . | join ", " }}]
  {{- with $parts._2 }}
  resourceNames: [{{ . | replace "," ", " }}]
  {{- end }}
  verbs: [{{ $parts._1 | replace "," ", " }}]
{{- end }}
{{- end }}

{{/* A role and its binding: (list $ NAME RIGHTS NAMESPACE); without a namespace for the cluster. */}}
{{- define "gpu-rightsizer.role" -}}
{{- $ := index . 0 -}}
{{- $name := index . 1 -}}
{{- $namespace := index . 3 -}}
{{- $component := "rightsizer" -}}
{{- if gt (len .) 4 }}{{ $component = index . 4 }}{{ end -}}
{{- $kind := ternary "Role" "ClusterRole" (ne $namespace "") -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "gpu-rightsizer.labels" (list $ $component) | nindent 4 }}
rules:
{{- include "gpu-rightsizer.rules" (index . 2) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "gpu-rightsizer.labels" (list $ $component) | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name }}}
subjects:
- {kind: ServiceAccount, name: {{ include (printf "gpu-rightsizer.%s" (get (dict "extender" "extenderAccount" "backtest" "backtestAccount") $component | default "account")) $ }}, namespace: {{ $.Release.Namespace }}}
{{- end }}

{{/* The validations of an admission policy; those with patterns once for each pattern: (list $ VALIDATIONS
SYSTEM-NAMESPACES). */}}
{{- define "gpu-rightsizer.validations" -}}
{{- $ := index . 0 -}}
{{- $policy := include "gpu-rightsizer.policy" $ | fromYaml -}}
{{- $system := index . 2 -}}
{{- range $one := index . 1 -}}
{{- if contains "rule RANGE" $one.message -}}
{{- range $rule := $policy.rules | default list -}}
{{- if eq $rule.mode "enforce" }}{{ break }}{{ end -}}
{{- if and (eq $rule.mode "protect") $rule.match.priority (not (omit $rule.match "priority")) -}}
{{- $min := ternary $rule.match.priority.min -2147483648 (hasKey $rule.match.priority "min") | int64 | toString -}}
{{- $max := ternary $rule.match.priority.max 1000000000 (hasKey $rule.match.priority "max") | int64 | toString -}}
{{- $expression := $one.expression | replace "-1111111111" $min | replace "999999999" $max -}}
{{- $message := $one.message | replace "-1111111111" $min | replace "999999999" $max | replace "rule RANGE" (printf "rule %s" $rule.name) }}
{{ list (merge (dict "expression" $expression "message" $message) $one) | toYaml }}
{{- end -}}
{{- end -}}
{{- else if contains "PATTERN" $one.expression -}}
{{- if contains "RULE" $one.message -}}
{{- range $rule := $policy.rules | default list -}}
{{- if eq $rule.mode "enforce" }}{{ break }}{{ end -}}
{{- if and (eq $rule.mode "protect") $rule.match.priorityClasses (not (omit $rule.match "priorityClasses")) -}}
{{- range $rule.match.priorityClasses }}
{{ include "gpu-rightsizer.validation" (list $one . $rule.name) }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range include "gpu-rightsizer.protectedClasses" $ | fromJsonArray }}
{{ include "gpu-rightsizer.validation" (list $one . (printf "priorityclass:%s" .)) }}
{{- end -}}
{{- else -}}
{{- range $policy.protectedNamespaces | default list }}
{{ include "gpu-rightsizer.validation" (list $one . "") }}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $own := $.Release.Namespace -}}
{{- $expression := $one.expression }}
{{- if has $own $system }}{{ $expression = replace ", \"OWN-NAMESPACE\"" "" $expression }}{{ end }}
{{- $expression = replace "OWN-NAMESPACE" $own $expression }}
{{ list (merge (dict "expression" $expression) $one) | toYaml }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "gpu-rightsizer.validation" -}}
{{- $one := index . 0 -}}
{{- $pattern := index . 1 -}}
{{- $expression := replace "\"^PATTERN$\"" (include "gpu-rightsizer.regex" $pattern | toRawJson) $one.expression -}}
{{- $message := $one.message | replace "PATTERN" ($pattern | default "(none)") | replace "rule RULE" (printf "rule %s" (index . 2)) -}}
{{- list (merge (dict "expression" $expression "message" $message) $one) | toYaml -}}
{{- end }}
