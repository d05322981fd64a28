{{- define "phasewise.labels" -}}
app.kubernetes.io/name: phasewise
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "phasewise.gatewayLabels" -}}
{{ include "phasewise.labels" . }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "phasewise.engineLabels" -}}
{{ include "phasewise.labels" . }}
app.kubernetes.io/component: engine
{{- end }}

{{- define "phasewise.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- /* The Secret with gateway.yaml. */ -}}
{{- define "phasewise.fileSecret" -}}
{{ .Values.gateway.fileSecret | default (printf "%s-gateway" .Release.Name) }}
{{- end }}

{{- /* What a gateway reads only when it starts: a change of it replaces the pods. */ -}}
{{- define "phasewise.startSettings" -}}
{{- $it := .Values.gateway }}
host: 0.0.0.0
port: 8080
processes: {{ $it.processes }}
drain_s: {{ $it.drainSeconds }}
reload_on_change: true
{{- if .Values.secretName }}
salt_secret_file: /etc/phasewise-secrets/salt-secret
{{- end }}
{{- with $it.redisUrl }}
redis:
  url: {{ . | quote }}
{{- end }}
{{- with $it.settings }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Where gateways find the engines of each pool: those that are ready are workers. */ -}}
{{- define "phasewise.discover" -}}
{{- range $pool := .Values.engines.pools }}
{{- $name := printf "%s-%s" $.Release.Name $pool.name }}
{{- if eq $.Values.engines.discovery "dns" }}
- dns: {{ $name }}.{{ $.Release.Namespace }}.svc
  port: {{ $.Values.engines.port }}
{{- else }}
- service: {{ $name }}
  port: http
{{- end }}
  model: {{ $pool.model | quote }}
  role: {{ $pool.role | default "mixed" }}
  pool: {{ $pool.name }}
  {{- if not $pool.command }}
  steps_port: {{ add $.Values.engines.port 10000 }}
  {{- end }}
  {{- with $pool.slots }}
  slots: {{ . }}
  {{- end }}
  {{- if $.Values.secretName }}
  api_key_file: /etc/phasewise-secrets/engine-key
  {{- end }}
{{- end }}
{{- end }}

{{- /* Whether gateways ask the API server. */ -}}
{{- define "phasewise.asksApi" -}}
{{- if and .Values.engines.pools (eq .Values.engines.discovery "api") (not .Values.gateway.fileSecret) }}yes{{ end }}
{{- end }}
