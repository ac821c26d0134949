{{/* Names of objects, and their labels. */}}

{{- define "gpu-rightsizer.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "gpu-rightsizer.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "gpu-rightsizer.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Of admission policies: by these first words, the program knows that one of its own refused a request. */}}
{{- define "gpu-rightsizer.guardrails" -}}
{{- $name := include "gpu-rightsizer.fullname" . -}}
{{- ternary $name (printf "gpu-rightsizer-%s" $name) (hasPrefix "gpu-rightsizer" $name) -}}
{{- end }}

{{- define "gpu-rightsizer.exporter" -}}
{{- include "gpu-rightsizer.fullname" . }}-exporter
{{- end }}

{{- define "gpu-rightsizer.account" -}}
{{- .Values.serviceAccount.name | default (include "gpu-rightsizer.fullname" .) -}}
{{- end }}

{{/* 43 characters at most, as the name of a CronJob has 52. */}}
{{- define "gpu-rightsizer.backtest" -}}
{{- include "gpu-rightsizer.fullname" . | trunc 43 | trimSuffix "-" }}-backtest
{{- end }}

{{/* The backtest's own account, unless the chart creates none. */}}
{{- define "gpu-rightsizer.backtestAccount" -}}
{{- ternary (include "gpu-rightsizer.backtest" .) .Values.serviceAccount.name .Values.serviceAccount.create -}}
{{- end }}

{{/* 45 characters at most, for the same reason. */}}
{{- define "gpu-rightsizer.digest" -}}
{{- include "gpu-rightsizer.fullname" . | trunc 45 | trimSuffix "-" }}-digest
{{- end }}

{{- define "gpu-rightsizer.extender" -}}
{{- include "gpu-rightsizer.fullname" . }}-extender
{{- end }}

{{/* The extender's own account, unless the chart creates none. */}}
{{- define "gpu-rightsizer.extenderAccount" -}}
{{- ternary (include "gpu-rightsizer.extender" .) .Values.serviceAccount.name .Values.serviceAccount.create -}}
{{- end }}

{{/* Selector labels of a component: (list $ COMPONENT). */}}
{{- define "gpu-rightsizer.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "gpu-rightsizer.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels: (list $ COMPONENT). */}}
{{- define "gpu-rightsizer.labels" -}}
{{- $ := index . 0 -}}
{{ include "gpu-rightsizer.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- with $.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Label keys that the chart or Helm sets; a user's label with such a key would be a duplicate. */}}
{{- define "gpu-rightsizer.ownLabels" -}}
app.kubernetes.io/name app.kubernetes.io/instance app.kubernetes.io/component app.kubernetes.io/version app.kubernetes.io/managed-by helm.sh/chart
{{- end }}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "gpu-rightsizer.milliseconds" -}}
{{- $sum := 0 -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" . -1 -}}
{{- $sum = add $sum (mul (regexFind "^[0-9]+" . | int64) (get $units (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end }}

{{- define "gpu-rightsizer.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* The preset of the platform as JSON, with defaults for missing values. */}}
{{- define "gpu-rightsizer.platform" -}}
{{- $all := .Files.Get "files/platforms.yaml" | fromYaml -}}
{{- $own := get $all .Values.platform -}}
{{- $found := dict -}}
{{- range $part, $default := get $all "" -}}
{{- $given := get $own $part -}}
{{- if and (kindIs "map" $default) (kindIs "map" $given) -}}
{{- range $name, $value := $default -}}
{{- if not (hasKey $given $name) }}{{ $_ := set $given $name $value }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $found $part (ternary $given $default (hasKey $own $part)) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end }}

{{/* The exporter's values that a preset may set, with the user's values on top, as JSON. A nodeSelector or affinity of the
user replaces both of the preset. */}}
{{- define "gpu-rightsizer.exporterOn" -}}
{{- $given := dict -}}
{{- $constraints := .Values.exporter.securityContextConstraints.create -}}
{{- range $name, $value := set (deepCopy .Values.exporter) "securityContextConstraints" $constraints -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $given $name $value }}{{ end -}}
{{- end -}}
{{- $chosen := or (hasKey $given "nodeSelector") (hasKey $given "affinity") -}}
{{- $found := dict -}}
{{- range $name, $preset := (include "gpu-rightsizer.platform" . | fromJson).exporter -}}
{{- if and $chosen (has $name (list "nodeSelector" "affinity")) }}{{ $preset = dict }}{{ end -}}
{{- $_ := set $found $name (ternary (get $given $name) $preset (hasKey $given $name)) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end }}

{{/* Whether the exporter queries the API server; empty if not. */}}
{{- define "gpu-rightsizer.asksApi" -}}
{{- if or .Values.exporter.podUid .Values.exporter.podLabels }}yes{{ end -}}
{{- end }}

{{/* Labels of a pool's nodes, as a node selector term: (list $ POOL). */}}
{{- define "gpu-rightsizer.poolTerm" -}}
{{- $pool := index . 1 -}}
{{- $found := list -}}
{{- range $key, $value := $pool.nodeSelector -}}
{{- $found = append $found (dict "key" $key "operator" "In" "values" (list $value)) -}}
{{- end -}}
{{- if $pool.rdma -}}
{{- $found = concat $found (include "gpu-rightsizer.platform" (index . 0) | fromJson).rdma -}}
{{- end -}}
{{- dict "matchExpressions" (concat $found ($pool.matchExpressions | default list)) | toJson -}}
{{- end }}
