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

{{/*
Changes with what pods are told of the store at their start: its password or address, and the CA of
its certificate. Empty where there is no cluster to ask. The uids, which only they know who may read
the Secrets, keep others from trying passwords on the sum.
*/}}
{{- define "octavo.storeChecksum" -}}
{{- $own := .Values.valkey.auth.existingSecret -}}{{- $redis := .Values.externalRedis -}}
{{- if and .Values.valkey.enabled (not $own.name) -}}
{{- include "octavo.valkeyOwnPassword" . | sha256sum -}}
{{- else -}}
{{- $told := "" -}}
{{- range ternary (list $own) (list $redis.urlSecret $redis.passwordSecret $redis.caSecret) .Values.valkey.enabled -}}
{{- if .name -}}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace .name | default dict -}}
{{- with dig "data" .key "" $secret -}}
{{- $told = printf "%s %s %s" $told $secret.metadata.uid . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $told }}{{ sha256sum . }}{{ end -}}
{{- end -}}
{{- end -}}
