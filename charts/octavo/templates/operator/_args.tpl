{{/* The operator's arguments, one a line. */}}
{{- define "octavo.operatorArgs" -}}
{{- $served := (include "octavo.namespaces" . | fromYaml).items -}}
- --log-json
- --log-level={{ .Values.operator.logLevel }}
- --status-listen=0.0.0.0:8081
{{- with $served }}
- {{ printf "--namespaces=%s" (join "," .) | quote }}
{{- end }}
- {{ printf "--engine-image-cpu=%s" (include "octavo.image" (list . .Values.engine.cpu.image "-cpu")) | quote }}
- {{ printf "--engine-image-cuda=%s" (include "octavo.image" (list . .Values.engine.cuda.image "-cuda")) | quote }}
- {{ printf "--loader-image=%s" (include "octavo.image" (list . .Values.loader.image "")) | quote }}
{{- if .Values.networkPolicy.enabled }}
- {{ printf "--monitoring-namespaces=%s" (prepend .Values.networkPolicy.monitoringNamespaces .Release.Namespace | uniq | join ",") | quote }}
{{- else }}
- --no-network-policies
{{- end }}
{{- $monitors := .Values.monitoring.podMonitors }}
{{- if or $monitors.enabled (kindIs "invalid" $monitors.enabled) }}
- --pod-monitor-interval={{ $monitors.interval }}
{{- $labels := list }}
{{- range $key, $value := $monitors.labels }}
{{- $labels = append $labels (printf "%s=%s" $key $value) }}
{{- end }}
{{- with $labels }}
- {{ printf "--pod-monitor-labels=%s" (join "," .) | quote }}
{{- end }}
{{- else }}
- --no-pod-monitors
{{- end }}
{{- $name := include "octavo.fullname" . }}
- --lease={{ .Release.Namespace }}/{{ $name }}-operator
{{- if .Values.gateway.enabled }}
{{- $labels := list }}
{{- range $key, $value := include "octavo.selectorLabels" (list . "gateway") | fromYaml }}
{{- $labels = append $labels (printf "%s=%s" $key $value) }}
{{- end }}
- {{ printf "--gateway-labels=%s" (join "," $labels) | quote }}
- --gateway-service={{ .Release.Namespace }}/{{ $name }}-gateway-status
{{- $domain := (.Values.gateway.engineTLS | default dict).trustDomain | default "cluster.local" }}
- {{ printf "--gateway-identity=spiffe://%s/ns/%s/sa/%s-gateway" $domain .Release.Namespace $name | quote }}
- --gateway-url={{ include "octavo.gatewayUrl" . }}/v1
{{- end }}
{{- range .Values.operator.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Where the cluster's own clients reach the API. */}}
{{- define "octavo.gatewayUrl" -}}
{{- $port := int .Values.gateway.service.port -}}
http://{{ include "octavo.fullname" . }}-gateway.{{ .Release.Namespace }}.svc{{ if ne $port 80 }}:{{ $port }}{{ end }}
{{- end -}}
