{{/* Names, labels and images. All names begin with the release's, so that two releases meet nowhere. */}}

{{/* Cuts a name so that two long ones stay two. (name, length) */}}
{{- define "octavo.short" -}}
{{- $name := index . 0 -}}{{- $length := index . 1 -}}
{{- if gt (len $name) $length -}}
{{- printf "%s-%s" (trunc (int (sub $length 9)) $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- define "octavo.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- include "octavo.short" (list .Release.Name 40) -}}
{{- else -}}
{{- include "octavo.short" (list (printf "%s-%s" .Release.Name $name) 40) -}}
{{- end -}}
{{- end -}}

{{/* Of objects without a namespace. The dot is in no name of a namespace, so no two are alike. */}}
{{- define "octavo.clusterName" -}}
{{- include "octavo.short" (list (printf "%s.%s" .Release.Namespace (include "octavo.fullname" .)) 50) -}}
{{- end -}}

{{/* Immutable in a Deployment: no version, no chart, nothing of the user's. (root, component) */}}
{{- define "octavo.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: octavo
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Of every object. (root, component) */}}
{{- define "octavo.labels" -}}
{{- $root := index . 0 -}}
{{- $own := dict
  "app.kubernetes.io/name" "octavo"
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/component" (index . 1)
  "app.kubernetes.io/part-of" "octavo"
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- toYaml (mergeOverwrite (deepCopy $root.Values.commonLabels) $own) -}}
{{- end -}}

{{/* Of pods: without version and chart, which would restart them at each upgrade. (root, component) */}}
{{- define "octavo.podLabels" -}}
{{- $root := index . 0 -}}
{{- $own := include "octavo.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "octavo" -}}
{{- $user := index $root.Values (index . 1) | default dict -}}
{{- $labels := deepCopy $root.Values.commonLabels -}}
{{- toYaml (mergeOverwrite $labels (deepCopy ($user.podLabels | default dict)) $own) -}}
{{- end -}}

{{/* (root, image, suffix of the default tag) */}}
{{- define "octavo.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- $registry := default $root.Values.image.registry $image.registry -}}
{{- $tag := default (print (default $root.Chart.AppVersion $root.Values.image.tag) (index . 2)) $image.tag -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end -}}

{{/* Namespaces that are served, as a list under "items"; empty is all. */}}
{{- define "octavo.namespaces" -}}
{{- $names := .Values.rbac.namespaces -}}
{{- if and (not $names) (not .Values.rbac.clusterScoped) -}}
{{- $names = list .Release.Namespace -}}
{{- end -}}
{{- toYaml (dict "items" $names) -}}
{{- end -}}

{{/* Renders nothing or "true": null looks for the kind. (root, wanted, kind) */}}
{{- define "octavo.wanted" -}}
{{- $root := index . 0 -}}{{- $wanted := index . 1 -}}
{{- if kindIs "invalid" $wanted -}}
{{- if $root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" (index . 2)) -}}true{{- end -}}
{{- else if $wanted -}}true{{- end -}}
{{- end -}}
