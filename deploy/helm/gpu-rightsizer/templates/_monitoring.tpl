{{/* The endpoint of a ServiceMonitor or PodMonitor: (list $ MONITOR IS-EXPORTER). */}}
{{- define "gpu-rightsizer.endpoint" -}}
{{- $ := index . 0 -}}
{{- $monitor := index . 1 -}}
- port: metrics
  interval: {{ $monitor.interval }}
  scrapeTimeout: {{ $monitor.scrapeTimeout }}
  honorLabels: {{ and $monitor.honorLabels (index . 2) }}
  {{- if and (index . 2) $.Values.exporter.webConfig.existingSecret }}
  scheme: {{ ternary "https" "http" $.Values.exporter.webConfig.tls }}
  {{- with $monitor.tlsConfig }}
  tlsConfig: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $monitor.basicAuth }}
  basicAuth: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with $monitor.relabelings }}
  relabelings: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $monitor.metricRelabelings }}
  metricRelabelings: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* A ServiceMonitor or PodMonitor: (list $ KIND MONITOR NAME COMPONENT). */}}
{{- define "gpu-rightsizer.monitor" -}}
{{- $ := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $monitor := index . 2 -}}
{{- $component := index . 4 -}}
apiVersion: monitoring.coreos.com/v1
kind: {{ $kind }}
metadata:
  name: {{ index . 3 }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "gpu-rightsizer.labels" (list $ $component) | nindent 4 }}
    {{- with $monitor.labels }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  selector:
    matchLabels: {{- include "gpu-rightsizer.selector" (list $ $component) | nindent 6 }}
  {{ ternary "endpoints" "podMetricsEndpoints" (eq $kind "ServiceMonitor") }}: {{- include "gpu-rightsizer.endpoint" (list $ $monitor (eq $component "exporter")) | nindent 2 }}
{{- end }}

{{/* An expression of the rules, restricted to this release's objects: (list $ EXPR). */}}
{{- define "gpu-rightsizer.ofThisRelease" -}}
{{- $name := include "gpu-rightsizer.fullname" (index . 0) -}}
{{- $expr := index . 1 -}}
{{- range list "cronjob" "deployment" -}}
{{- $expr = $expr | replace (printf "%s=~\"(.*-)?gpu-rightsizer(-.+)?\"" .) (printf "%s=%q" . $name) -}}
{{- end -}}
{{- $expr = $expr | replace ", cronjob!~\".+-(backtest|digest)\"" "" | replace "cronjob=~\"(.*-)?gpu-rightsizer(-.+)?-(backtest|digest)\"" (printf "cronjob=~\"%s|%s\"" (include "gpu-rightsizer.backtest" (index . 0)) (include "gpu-rightsizer.digest" (index . 0))) -}}
{{- $expr | replace "job=~\"(.*[/-])?gpu-rightsizer\"" (printf "job=~\"(.*/)?%s\"" $name) -}}
{{- end }}

{{/* Evaluation interval of a group; empty for Prometheus's own: (list $ GROUP). Groups that count between two
evaluations, or have windows of their interval, keep it. */}}
{{- define "gpu-rightsizer.groupInterval" -}}
{{- $rules := (index . 0).Values.monitoring.rules -}}
{{- $group := index . 1 -}}
{{- if eq $group.name "gpu-rightsizer-dashboard-faults" -}}
{{- $group.interval -}}
{{- else if hasPrefix "gpu-rightsizer-dashboard-" $group.name -}}
{{- $rules.dashboard.interval -}}
{{- else -}}
{{- $group.interval | default (ternary $rules.alerts.interval "" (hasPrefix "gpu-rightsizer-alerts-" $group.name)) -}}
{{- end -}}
{{- end }}

{{/* A PrometheusRule from a file: (list $ NAME FILE). Values set runbook links, the waste budget, and the deadline of
Jobs. */}}
{{- define "gpu-rightsizer.prometheusRule" -}}
{{- $ := index . 0 -}}
{{- $base := $.Values.monitoring.rules.runbookBaseUrl | trimSuffix "/" -}}
{{- $groups := ($.Files.Get (index . 2) | fromYaml).groups -}}
{{- range $group := $groups -}}
{{- with include "gpu-rightsizer.groupInterval" (list $ $group) }}{{ $_ := set $group "interval" . }}{{ end -}}
{{- range .rules -}}
{{- if eq (.record | default "") "gpu_rightsizer:waste_budget:per_hour" -}}
{{- $_ := set . "expr" (printf "vector(%v)" $.Values.monitoring.rules.alerts.wasteBudgetPerHour) -}}
{{- end -}}
{{- $_ := set . "expr" (include "gpu-rightsizer.ofThisRelease" (list $ .expr)) -}}
{{- if eq (.alert | default "") "GpuRightsizerJobFailing" -}}
{{- $_ := set . "for" (printf "%dm" (add 5 (div (add 59 $.Values.rightsizer.cronJob.activeDeadlineSeconds) 60))) -}}
{{- end -}}
{{- if eq (.alert | default "") "GpuRightsizerReportMissed" -}}
{{- $_ := set . "for" (printf "%dm" (add 5 (div (add 59 (max $.Values.backtest.activeDeadlineSeconds $.Values.rightsizer.cronJob.activeDeadlineSeconds)) 60))) -}}
{{- end -}}
{{- if and $base .annotations -}}
{{- $_ := set .annotations "runbook_url" (printf "%s/%s" $base .annotations.runbook) -}}
{{- end -}}
{{- end -}}
{{- end -}}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ index . 1 }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "gpu-rightsizer.labels" (list $ "monitoring") | nindent 4 }}
    {{- with $.Values.monitoring.rules.labels }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  groups: {{- toYaml $groups | nindent 2 }}
{{- end }}

{{/* The alerts that need the rightsizer's metrics, which a CronJob does not serve. */}}
{{- define "gpu-rightsizer.silentAlerts" -}}
{{- $found := list -}}
{{- range (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- range .rules -}}
{{- if and .alert (contains "gpu_rightsizer" .expr) }}{{ $found = append $found .alert }}{{ end -}}
{{- end -}}
{{- end -}}
{{- join ", " $found -}}
{{- end }}
