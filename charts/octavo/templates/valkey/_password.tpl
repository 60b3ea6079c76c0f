{{/* Name and key of the Secret with the password. */}}
{{- define "octavo.valkeyPassword" -}}
{{- if .Values.valkey.auth.existingSecret.name -}}
{{- toYaml .Values.valkey.auth.existingSecret -}}
{{- else -}}
{{- toYaml (dict "name" (printf "%s-valkey" (include "octavo.fullname" .)) "key" "password") -}}
{{- end -}}
{{- end -}}

{{/* The password of our own Secret: what the cluster has, else a new one, the same in all templates. */}}
{{- define "octavo.valkeyOwnPassword" -}}
{{- $auth := .Values.valkey.auth -}}
{{- if not (hasKey $auth "made") -}}
{{- $secret := lookup "v1" "Secret" .Release.Namespace (printf "%s-valkey" (include "octavo.fullname" .)) -}}
{{- $kept := get (default dict (get (default dict $secret) "data")) "password" | default "" | b64dec -}}
{{- $_ := set $auth "made" (default (randAlphaNum 32) $kept) -}}
{{- end -}}
{{- $auth.made -}}
{{- end -}}
