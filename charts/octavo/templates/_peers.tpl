{{/* Peers and rules of NetworkPolicies, as JSON. */}}

{{/* Who may read /metrics and /state: this namespace, and those that are named. */}}
{{- define "octavo.scrapers" -}}
{{- $peers := list (dict "podSelector" dict) -}}
{{- range .Values.networkPolicy.monitoringNamespaces -}}
{{- $selector := dict "matchLabels" (dict "kubernetes.io/metadata.name" .) -}}
{{- $peers = append $peers (dict "namespaceSelector" $selector) -}}
{{- end -}}
{{- toJson $peers -}}
{{- end -}}

{{/* The API server has no pod to name: its ports anywhere, before and after its Service. Here as
with DNS there is no rule without ports: it would open them all. */}}
{{- define "octavo.toApiServer" -}}
{{- $ports := list -}}
{{- range .Values.networkPolicy.apiServerPorts -}}
{{- $ports = append $ports (dict "port" . "protocol" "TCP") -}}
{{- end -}}
{{- with $ports }}{{ toJson (dict "ports" .) }}{{ end -}}
{{- end -}}

{{- define "octavo.toDns" -}}
{{- $ports := list -}}
{{- range .Values.networkPolicy.dnsPorts -}}
{{- $ports = concat $ports (list (dict "port" . "protocol" "UDP") (dict "port" . "protocol" "TCP")) -}}
{{- end -}}
{{- with $ports }}{{ toJson (dict "ports" .) }}{{ end -}}
{{- end -}}
