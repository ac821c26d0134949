{{/* The exporter's affinity, without nodes that the GPU Operator pauses: its driver manager and MIG manager write these
values into labels that its own DaemonSets select. As JSON, or empty. */}}
{{- define "gpu-rightsizer.exporterPlaces" -}}
{{- $affinity := include "gpu-rightsizer.exporterAffinity" . | default "{}" | fromJson -}}
{{- if .Values.exporter.pauseForGpuOperator -}}
{{- $paused := list "paused-for-driver-upgrade" "paused-for-mig-change" "paused-for-mig-change_paused-for-driver-upgrade" -}}
{{- $pausing := list -}}
{{- range list "client" "dcgm-exporter" "dcgm-exporter-dra" -}}
{{- $pausing = append $pausing (dict "key" (printf "nvidia.com/gpu.deploy.%s" .) "operator" "NotIn" "values" $paused) -}}
{{- end -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms | default (list dict) -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat (.matchExpressions | default list) $pausing)) .) -}}
{{- end -}}
{{- $required = merge (dict "nodeSelectorTerms" $terms) $required -}}
{{- $node = merge (dict "requiredDuringSchedulingIgnoredDuringExecution" $required) $node -}}
{{- $affinity = merge (dict "nodeAffinity" $node) $affinity -}}
{{- end -}}
{{- with $affinity }}{{ toJson . }}{{ end -}}
{{- end }}
