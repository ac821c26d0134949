{{/* The exporter's pod: settings as GPU_EXPORTER_* variables, and only the mounts that it needs. */}}

{{- define "gpu-rightsizer.exporterEnv" -}}
{{- $values := .Values.exporter -}}
{{- $on := include "gpu-rightsizer.exporterOn" . | fromJson -}}
{{- $observers := $on.adminAccessNamespaces -}}
{{- if eq $on.gpuAccess "claim" }}{{ $observers = append $observers .Release.Namespace | uniq }}{{ end -}}
{{- $given := dict
  "LISTEN" ":9400"
  "INTERVAL" $values.interval
  "METRICS" ($values.metrics | default (ternary "full" "default" .Values.monitoring.rules.alerts.enabled))
  "COLLECTORS" (join "," $values.collectors)
  "NAMING" $values.naming
  "HOSTNAME_LABEL" $values.hostnameLabel
  "SHARED_GPUS" $values.sharedGpus
  "DEVICES" $values.devices
  "SERIAL_NUMBERS" (ternary "true" "" $values.serialNumbers)
  "RESOURCE_NAMES" (join "," $values.resourceNames)
  "ADMIN_ACCESS_NAMESPACES" (join "," $observers)
  "POD_LABELS" (join "," $values.podLabels)
  "POD_UID" (ternary "true" "" $values.podUid)
  "HPC_JOB_MAPPING_DIR" (ternary "/var/lib/hpc-jobs" "" (ne $values.hpcJobMappingDir ""))
  "GIVE_UP_AFTER" $values.giveUpAfter
  "LOG_FORMAT" $values.logFormat
  "LOG_LEVEL" $values.logLevel
  "WEB_CONFIG_FILE" (ternary (printf "/etc/gpu-exporter/web/%s" $values.webConfig.key) "" (ne $values.webConfig.existingSecret ""))
-}}
- name: GPU_EXPORTER_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: GPU_EXPORTER_OWN_POD
  value: $(POD_NAMESPACE)/$(POD_NAME)
{{- range $name, $value := $given }}
{{- if $value }}
- name: GPU_EXPORTER_{{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Variables that give the container the driver's library and devices. */}}
{{- define "gpu-rightsizer.gpuEnv" -}}
{{- if eq .gpuAccess "host" -}}
- name: LD_LIBRARY_PATH
  value: /usr/local/nvidia/lib64
{{- else if ne .gpuAccess "claim" -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ ternary "/var/run/nvidia-container-devices" "all" (eq .gpuAccess "volume-mounts") }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- end }}
{{- end }}

{{- define "gpu-rightsizer.exporterMounts" -}}
{{- $on := include "gpu-rightsizer.exporterOn" . | fromJson -}}
- name: pod-resources
  mountPath: /var/lib/kubelet/pod-resources
  readOnly: true
{{- if .Values.exporter.attribution.enabled }}
- name: pod-logs
  mountPath: /var/log/pods
  readOnly: true
- name: container-logs
  mountPath: /var/log/containers
  readOnly: true
{{- end }}
{{- if .Values.exporter.hpcJobMappingDir }}
- name: hpc-jobs
  mountPath: /var/lib/hpc-jobs
  readOnly: true
{{- end }}
{{- if .Values.exporter.webConfig.existingSecret }}
- name: web-config
  mountPath: /etc/gpu-exporter/web
  readOnly: true
{{- end }}
{{- if eq $on.gpuAccess "volume-mounts" }}
- name: all-gpus
  mountPath: /var/run/nvidia-container-devices/all
  readOnly: true
{{- else if eq $on.gpuAccess "host" }}
- name: driver
  mountPath: /usr/local/nvidia
  readOnly: true
{{- end }}
{{- with .Values.exporter.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpu-rightsizer.exporterVolumes" -}}
{{- $on := include "gpu-rightsizer.exporterOn" . | fromJson -}}
# The directory: the kubelet recreates the socket when it restarts.
- name: pod-resources
  hostPath: {path: {{ .Values.exporter.podResourcesDir }}, type: Directory}
{{- if .Values.exporter.attribution.enabled }}
# Only for the names of the kubelet's directories and links, which map pod UIDs to names of pods and containers.
- name: pod-logs
  hostPath: {path: /var/log/pods, type: Directory}
- name: container-logs
  hostPath: {path: /var/log/containers, type: Directory}
{{- end }}
{{- with .Values.exporter.hpcJobMappingDir }}
- name: hpc-jobs
  hostPath: {path: {{ . }}, type: Directory}
{{- end }}
{{- with .Values.exporter.webConfig.existingSecret }}
- name: web-config
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if eq $on.gpuAccess "volume-mounts" }}
- name: all-gpus
  hostPath: {path: /dev/null, type: CharDevice}
{{- else if eq $on.gpuAccess "host" }}
- name: driver
  hostPath: {path: {{ required "exporter.gpuAccess is host, so exporter.driverRoot is required: the directory on the nodes with the driver's libraries in lib64" $on.driverRoot }}, type: Directory}
{{- end }}
{{- with .Values.exporter.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* With a web configuration probes only test the port, because they have no password or client certificate. */}}
{{- define "gpu-rightsizer.exporterProbe" -}}
{{- $ := index . 0 -}}
{{- if $.Values.exporter.webConfig.existingSecret -}}
tcpSocket: {port: metrics}
{{- else -}}
httpGet: {path: {{ index . 1 }}, port: metrics}
{{- end -}}
{{- end }}

{{- define "gpu-rightsizer.exporterSecurity" -}}
{{- $on := include "gpu-rightsizer.exporterOn" . | fromJson -}}
readOnlyRootFilesystem: true
{{- if eq $on.gpuAccess "host" }}
# Without the NVIDIA container runtime, only this gives a container /dev/nvidia*.
privileged: true
{{- else }}
privileged: false
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}
{{- with $on.seLinuxType }}
seLinuxOptions: {type: {{ . }}}
{{- end }}
{{- end }}

{{/* Node affinity: the platform's nodes or the user's choice, and the pools. As JSON, or empty. */}}
{{- define "gpu-rightsizer.exporterAffinity" -}}
{{- $on := include "gpu-rightsizer.exporterOn" . | fromJson -}}
{{- $affinity := $on.affinity | default dict -}}
{{- if .Values.nodePools -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := $required.nodeSelectorTerms | default list -}}
{{- if $on.nodeSelector -}}
{{- $terms = list -}}
{{- $own := include "gpu-rightsizer.poolTerm" (list . (dict "nodeSelector" $on.nodeSelector)) | fromJson -}}
{{- range $required.nodeSelectorTerms | default (list (dict)) -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat $own.matchExpressions (.matchExpressions | default list))) .) -}}
{{- end -}}
{{- end -}}
{{- if $terms -}}
{{- range .Values.nodePools -}}
{{- /* Nodes with the RDMA label need not have GPUs. */ -}}
{{- if not (or .nodeSelector .matchExpressions) }}{{ continue }}{{ end -}}
{{- $terms = append $terms (include "gpu-rightsizer.poolTerm" (list $ .) | fromJson) -}}
{{- end -}}
{{- $required = merge (dict "nodeSelectorTerms" $terms) $required -}}
{{- $affinity = merge (dict "nodeAffinity" (merge (dict "requiredDuringSchedulingIgnoredDuringExecution" $required) $node)) $affinity -}}
{{- end -}}
{{- end -}}
{{- with $affinity }}{{ toJson . }}{{ end -}}
{{- end }}
