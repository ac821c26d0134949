{{/* The pods of rightsizer, backtest, extender and digest: settings as GPU_RIGHTSIZER_* variables, files mounted read-only. */}}

{{/* Variables of a component: (list $ COMPONENT). */}}
{{- define "gpu-rightsizer.rightsizerEnv" -}}
{{- $component := index . 1 -}}
{{- $isBacktest := eq (index . 1) "backtest" -}}
{{- with index . 0 -}}
{{- $values := .Values.rightsizer -}}
{{- $prometheus := $values.prometheus -}}
{{- $isExtender := eq $component "extender" -}}
{{- $runs := or $isExtender (and (eq $values.mode "deployment") (eq $component "rightsizer")) -}}
{{- $ledger := ternary (ternary $values.ledger.bucket "/var/lib/gpu-rightsizer-ledger" (empty $values.ledger.existingClaim)) "" (eq $component "rightsizer") -}}
{{- $given := dict
  "POLICY" (ternary "/etc/gpu-rightsizer/policy.yaml" "" (and (not $isBacktest) (not (empty (include "gpu-rightsizer.policy" .)))))
  "PRICES" (ternary "/etc/gpu-rightsizer/prices.yaml" "" (not (empty $values.prices)))
  "PROMETHEUS_URL" $prometheus.url
  "PROMETHEUS_TOKEN_FILE" $prometheus.tokenFile
  "PROMETHEUS_USER" $prometheus.user
  "PROMETHEUS_PASSWORD_FILE" $prometheus.passwordFile
  "PROMETHEUS_SIGV4_REGION" $prometheus.sigv4Region
  "PROMETHEUS_CLIENT_CERT_FILE" $prometheus.clientCertFile
  "PROMETHEUS_CLIENT_KEY_FILE" $prometheus.clientKeyFile
  "PROMETHEUS_CA_FILE" $prometheus.caFile
  "PROMETHEUS_INSECURE_SKIP_VERIFY" (ternary "true" "" $prometheus.insecureSkipVerify)
  "PROMETHEUS_TIMEOUT" $prometheus.timeout
  "PROMETHEUS_PARALLEL" (int64 $prometheus.parallel)
  "PROMETHEUS_MAX_SAMPLES" (int64 $prometheus.maxSamples)
  "SIGNALS" (ternary $prometheus.signals "/etc/gpu-rightsizer/signals.yaml" (empty $prometheus.signalsTable))
  "EXPORTER_NAMESPACE" (join "," (concat (ternary (list .Release.Namespace) list .Values.exporter.enabled) $prometheus.exporterNamespaces | uniq))
  "RECORDING_RULES" $prometheus.recordingRules
  "GPU_RESOURCE" (join "," $values.gpuResources)
  "STATE_NAMESPACE" .Release.Namespace
  "INSTANCE" (ternary "" $values.instance $isBacktest)
  "STATE_FILE" (ternary "/tmp/slots" "" (and $runs (not $isExtender)))
  "LEDGER" $ledger
  "CLUSTER_NAME" (ternary $values.ledger.clusterName "" (has $component (list "rightsizer" "digest" "backtest")))
  "TEAM_LABEL" (ternary "" $values.ledger.teamLabel (empty $ledger))
  "SCHEDULE" (ternary (ternary .Values.extender.schedule $values.schedule $isExtender) "" $runs)
  "TIME_ZONE" (ternary $values.timeZone "" $runs)
  "JITTER" (ternary $values.jitter "" $runs)
  "LISTEN" (ternary ":9401" "" $runs)
  "EXTENDER_LISTEN" (ternary ":9402" "" $isExtender)
  "TLS_CERT_FILE" (ternary "/etc/gpu-rightsizer/tls/tls.crt" "" $isExtender)
  "TLS_KEY_FILE" (ternary "/etc/gpu-rightsizer/tls/tls.key" "" $isExtender)
  "CLIENT_CA_FILE" (ternary "/etc/gpu-rightsizer/tls/ca.crt" "" (and $isExtender .Values.extender.tls.verifyClient))
  "LOG_FORMAT" $values.logFormat
  "LOG_LEVEL" $values.logLevel
-}}
{{- range $name, $value := $given }}
{{- if $value }}
- name: GPU_RIGHTSIZER_{{ $name }}
  value: {{ $value | toString | toRawJson }}
{{- end }}
{{- end }}
# The image asks for all GPUs, for the exporter.
- name: NVIDIA_VISIBLE_DEVICES
  value: void
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Flags of queries that have no variable, as a JSON list. */}}
{{- define "gpu-rightsizer.queryArgs" -}}
{{- $args := list -}}
{{- range .Values.rightsizer.prometheus.headers }}{{ $args = concat $args (list "--prometheus-header" .) }}{{ end -}}
{{- range $name, $value := .Values.rightsizer.prometheus.labels }}{{ $args = concat $args (list "--prometheus-label" (printf "%s=%s" $name $value)) }}{{ end -}}
{{- $args | toRawJson -}}
{{- end }}

{{/* The command of the rightsizer, as a JSON list. */}}
{{- define "gpu-rightsizer.rightsizerArgs" -}}
{{- $values := .Values.rightsizer -}}
{{- $args := list "plan" -}}
{{- if eq $values.mode "deployment" }}{{ $args = list "run" }}{{ else if $values.act }}{{ $args = list "apply" }}{{ end -}}
{{- if $values.act }}{{ $args = concat $args (list "--yes" "--verify-for" $values.verifyFor) }}{{ end -}}
{{- if $values.ledger.serveReport }}{{ $args = append $args "--serve-report" }}{{ end -}}
{{- if eq $values.mode "cronjob" }}{{ $args = concat $args (list "--output" $values.output) }}{{ end -}}
{{- concat $args (include "gpu-rightsizer.queryArgs" . | fromJsonArray) $values.extraArgs | toRawJson -}}
{{- end }}

{{/* The command of the backtest, as a JSON list. */}}
{{- define "gpu-rightsizer.backtestArgs" -}}
{{- $values := .Values.backtest -}}
{{- $args := list "backtest" "--publish" "--from" $values.from "--output" $values.output -}}
{{- if include "gpu-rightsizer.policy" . }}{{ $args = concat $args (list "--policy" "/etc/gpu-rightsizer/policy.yaml") }}{{ end -}}
{{- range $name, $_ := $values.policies }}{{ $args = concat $args (list "--policy" (printf "/etc/gpu-rightsizer/backtest/%s.yaml" $name)) }}{{ end -}}
{{- if $values.enforce }}{{ $args = append $args "--enforce" }}{{ end -}}
{{- if $values.notify }}{{ $args = append $args "--notify" }}{{ end -}}
{{- with $values.history }}{{ $args = concat $args (list "--history" .) }}{{ end -}}
{{- if gt (int $values.parts) 1 }}{{ $args = concat $args (list "--part" (printf "$(JOB_COMPLETION_INDEX)/%d" (int $values.parts))) }}{{ end -}}
{{- if $values.report.existingClaim }}{{ $args = concat $args (list "--save" "/var/lib/gpu-rightsizer/backtest.html") }}{{ end -}}
{{- concat $args (include "gpu-rightsizer.queryArgs" . | fromJsonArray) $values.extraArgs | toRawJson -}}
{{- end }}

{{/* The command of the digest, as a JSON list. */}}
{{- define "gpu-rightsizer.digestArgs" -}}
{{- list "history" "--notify" "--since" .Values.digest.since "--policy" "/etc/gpu-rightsizer/policy.yaml" | toRawJson -}}
{{- end }}

{{/* The command of the extender, as a JSON list. */}}
{{- define "gpu-rightsizer.extenderArgs" -}}
{{- concat (list "extend") (include "gpu-rightsizer.queryArgs" . | fromJsonArray) .Values.extender.extraArgs | toRawJson -}}
{{- end }}

{{/* Policies that the backtest compares with the release's own, by file. */}}
{{- define "gpu-rightsizer.backtestPolicies" -}}
{{- range $name, $policy := .Values.backtest.policies }}
{{ $name }}.yaml: |
  {{- toYaml $policy | nindent 2 }}
{{- end }}
{{- end }}

{{/* Files from values. */}}
{{- define "gpu-rightsizer.files" -}}
{{- $values := .Values.rightsizer -}}
{{- with include "gpu-rightsizer.policy" . }}
policy.yaml: |
  {{- . | nindent 2 }}
{{- end }}
{{- with $values.prices }}
prices.yaml: |
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.prometheus.signalsTable }}
signals.yaml: |
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The pod of a component: (list $ COMPONENT). Pod Security "restricted"; a user only if the platform assigns none. */}}
{{- define "gpu-rightsizer.rightsizerPod" -}}
{{- $component := index . 1 -}}
{{- $isBacktest := eq $component "backtest" -}}
{{- with index . 0 -}}
{{- $values := .Values.rightsizer -}}
{{- $isExtender := eq $component "extender" -}}
{{- $runs := or $isExtender (and (eq $values.mode "deployment") (eq $component "rightsizer")) -}}
{{- $policies := ternary (include "gpu-rightsizer.backtestPolicies" .) "" $isBacktest -}}
{{- $claim := ternary .Values.backtest.report.existingClaim "" $isBacktest -}}
{{- $resources := ternary .Values.backtest.resources (ternary .Values.extender.resources $values.resources $isExtender) $isBacktest -}}
{{- $preset := (include "gpu-rightsizer.platform" . | fromJson).rightsizer.runAsUser -}}
{{- $user := ternary $preset $values.runAsUser (kindIs "invalid" $values.runAsUser) -}}
{{- $files := include "gpu-rightsizer.files" . -}}
metadata:
  labels:
    {{- include "gpu-rightsizer.labels" (list . $component) | nindent 4 }}
    {{- with $values.extraPodLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    # A changed policy changes the pod.
    checksum/files: {{ printf "%s%s" $files $policies | sha256sum }}
    {{- if and .Values.monitoring.scrapeAnnotations.enabled $runs }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "9401"
    prometheus.io/path: /metrics
    {{- end }}
    {{- with $values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include (get (dict "backtest" "gpu-rightsizer.backtestAccount" "extender" "gpu-rightsizer.extenderAccount") $component | default "gpu-rightsizer.account") . }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not $runs }}
  restartPolicy: Never
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    {{- with $user }}
    runAsUser: {{ int64 . }}
    runAsGroup: {{ int64 . }}
    fsGroup: {{ int64 . }}
    {{- end }}
    seccompProfile: {type: RuntimeDefault}
  {{- with $values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
  - name: {{ $component }}
    image: {{ include "gpu-rightsizer.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [gpu-rightsizer]
    args: {{- include (printf "gpu-rightsizer.%sArgs" $component) . | fromJsonArray | toYaml | nindent 4 }}
    env: {{- include "gpu-rightsizer.rightsizerEnv" (list . $component) | nindent 4 }}
    {{- if $runs }}
    ports:
    - {name: metrics, containerPort: 9401}
    {{- if $isExtender }}
    - {name: extender, containerPort: 9402}
    {{- end }}
    livenessProbe:
      httpGet: {path: /healthz, port: metrics}
      periodSeconds: 15
      timeoutSeconds: 5
    readinessProbe:
      httpGet: {path: /readyz, port: metrics}
      periodSeconds: 10
      timeoutSeconds: 5
    {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    {{- with $resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
    # What is written for a moment, such as certificates of a kubeconfig.
    - {name: tmp, mountPath: /tmp}
    {{- if $files }}
    - {name: files, mountPath: /etc/gpu-rightsizer, readOnly: true}
    {{- end }}
    {{- if $policies }}
    - {name: policies, mountPath: /etc/gpu-rightsizer/backtest, readOnly: true}
    {{- end }}
    {{- if $isExtender }}
    - {name: tls, mountPath: /etc/gpu-rightsizer/tls, readOnly: true}
    {{- end }}
    {{- if $values.prometheus.existingSecret }}
    - {name: prometheus, mountPath: /etc/gpu-rightsizer/prometheus, readOnly: true}
    {{- end }}
    {{- if $values.notifications.existingSecret }}
    - {name: notifications, mountPath: /etc/gpu-rightsizer/notifications, readOnly: true}
    {{- end }}
    {{- if $claim }}
    - {name: report, mountPath: /var/lib/gpu-rightsizer}
    {{- end }}
    {{- if and $values.ledger.existingClaim (not (has $component (list "backtest" "digest"))) }}
    - {name: ledger, mountPath: /var/lib/gpu-rightsizer-ledger}
    {{- end }}
    {{- with $values.extraVolumeMounts }}{{ toYaml . | nindent 4 }}{{ end }}
  volumes:
  - {name: tmp, emptyDir: {sizeLimit: 64Mi}}
  {{- if $files }}
  - name: files
    configMap: {name: {{ include "gpu-rightsizer.fullname" . }}-policy}
  {{- end }}
  {{- if $policies }}
  - name: policies
    configMap: {name: {{ include "gpu-rightsizer.backtest" . }}-policies}
  {{- end }}
  {{- if $isExtender }}
  - name: tls
    secret: {secretName: {{ .Values.extender.tls.existingSecret }}, defaultMode: 0440}
  {{- end }}
  {{- with $values.prometheus.existingSecret }}
  - name: prometheus
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- with $values.notifications.existingSecret }}
  - name: notifications
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- with $claim }}
  - name: report
    persistentVolumeClaim: {claimName: {{ . }}}
  {{- end }}
  {{- if and $values.ledger.existingClaim (not (has $component (list "backtest" "digest"))) }}
  - name: ledger
    persistentVolumeClaim: {claimName: {{ $values.ledger.existingClaim }}}
  {{- end }}
  {{- with $values.extraVolumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
