{{/* The gateway's arguments, one a line. */}}
{{- define "octavo.gatewayArgs" -}}
{{- $gateway := .Values.gateway -}}
{{- $served := (include "octavo.namespaces" . | fromYaml).items -}}
- "--host=::"
- --port=8000
- "--status-listen=[::]:8081"
- --no-auth
- --discover=kubernetes
{{- with $served }}
- {{ printf "--namespaces=%s" (join "," .) | quote }}
{{- end }}
{{- if kindIs "slice" $gateway.bareNames }}
- {{ printf "--bare-names=%s" (join "," $gateway.bareNames) | quote }}
{{- end }}
- --hold-s={{ $gateway.holdSeconds }}
- --max-held={{ $gateway.maxHeld }}
- --leave-s=5
- --drain-s={{ $gateway.drainSeconds }}
{{- if ($gateway.engineTLS | default dict).secretName }}
- --engine-tls-dir=/etc/octavo/engine-tls
{{- end }}
{{- with $gateway.allowedHosts }}
- {{ printf "--allowed-host=%s" (concat . (include "octavo.gatewayHosts" $ | fromYaml).items | uniq | join ",") | quote }}
{{- end }}
{{- with $gateway.corsOrigins }}
- {{ printf "--cors-origin=%s" (join "," .) | quote }}
{{- end }}
- --log-json
- --log-level={{ $gateway.logLevel }}
{{- range $gateway.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Names of the API's Service, as a list under "items": one of them is in the status of each service. */}}
{{- define "octavo.gatewayHosts" -}}
{{- $name := printf "%s-gateway" (include "octavo.fullname" .) -}}
{{- $full := printf "%s.%s" $name .Release.Namespace -}}
{{- toYaml (dict "items" (list $name $full (print $full ".svc") (print $full ".svc.cluster.local"))) -}}
{{- end -}}

{{/* Where records go. The kubelet puts the password, which is a Secret's, into the address. */}}
{{- define "octavo.redisEnv" -}}
{{- $external := .Values.externalRedis -}}
{{- $url := $external.url -}}
{{- $password := $external.passwordSecret -}}
{{- if .Values.valkey.enabled -}}
{{- $url = printf "redis://%s-valkey.%s.svc:6379/0" (include "octavo.fullname" .) .Release.Namespace -}}
{{- $password = include "octavo.valkeyPassword" . | fromYaml -}}
{{- end -}}
{{- if $external.urlSecret.name -}}
- name: OCTAVO_REDIS
  valueFrom: {secretKeyRef: {name: {{ $external.urlSecret.name | quote }}, key: {{ $external.urlSecret.key | quote }}}}
{{- else -}}
{{- if $password.name -}}
{{- $url = $url | replace "://" "://:$(REDIS_PASSWORD)@" -}}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $password.name | quote }}, key: {{ $password.key | quote }}}}
{{ end -}}
{{- if and $url $external.caSecret.name -}}
{{- $url = printf "%s%sssl_ca_certs=/etc/octavo/redis-ca/ca.crt" $url (ternary "&" "?" (contains "?" $url)) -}}
{{- end -}}
- name: OCTAVO_REDIS
  value: {{ $url | quote }}
{{- end -}}
{{- end -}}
