{{- define "sandbox.labels" -}}
app.kubernetes.io/name: mcp-sandbox-server
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sandbox.server" -}}
{{ include "sandbox.labels" . }}
app.kubernetes.io/component: server
{{- end }}

{{- /* Not empty where there may be more than one server. */ -}}
{{- define "sandbox.several" -}}
{{- if or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled }}true{{- end }}
{{- end }}

{{- /* Not empty where files of settings are mounted. */ -}}
{{- define "sandbox.configuration" -}}
{{- with .Values.configuration }}{{ .configMap }}{{ .secret }}{{- end }}
{{- end }}

{{- define "sandbox.user" -}}
{{ get (.Values.settings | default dict) "SANDBOX_ENGINE__RUNNER_UID" | default 1000 | int64 }}
{{- end }}

{{- define "sandbox.namespace" -}}
{{ .Values.sandboxes.namespace | default .Release.Namespace }}
{{- end }}

{{- define "sandbox.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sandbox.pullSecrets" -}}
{{- with .Values.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What Pod Security "restricted" asks of every container. */ -}}
{{- define "sandbox.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Every runner: {"list": [{name, image, labels}]}, ours with their labels of runners.json. */ -}}
{{- define "sandbox.runners" -}}
{{- $known := .Files.Get "runners.json" | fromJson }}
{{- $all := list }}
{{- range .Values.runners.names }}
{{- $labels := required (printf "runners.names has %s, which is not in runners.json" .) (get $known .) }}
{{- $image := printf "%srunner-%s:%s" $.Values.runners.repository . $.Values.runners.tag }}
{{- $all = append $all (dict "name" . "image" $image "labels" $labels) }}
{{- end }}
{{- range .Values.runners.more }}
{{- $all = append $all . }}
{{- end }}
{{- dict "list" $all | toJson }}
{{- end }}
