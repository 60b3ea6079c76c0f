{{/* Refuses values that cannot work, each with what to write instead. */}}
{{- define "octavo.checks" -}}
{{- range $old, $new := .Files.Get "files/renamed.yaml" | fromYaml -}}
{{- $at := $.Values -}}
{{- range splitList "." $old -}}
{{- $at = ternary (get (default dict $at) .) nil (and (kindIs "map" $at) (hasKey (default dict $at) .)) -}}
{{- end -}}
{{- if not (kindIs "invalid" $at) -}}
{{- fail (printf "%s is not a value of this chart: it is called %s" $old $new) -}}
{{- end -}}
{{- end -}}
{{- $redis := .Values.externalRedis -}}
{{- if and .Values.valkey.enabled (or $redis.url $redis.urlSecret.name) -}}
{{- fail "externalRedis and valkey.enabled exclude each other: set valkey.enabled=false" -}}
{{- end -}}
{{- if and $redis.url $redis.urlSecret.name -}}
{{- fail "externalRedis.url and externalRedis.urlSecret exclude each other" -}}
{{- end -}}
{{- if and $redis.passwordSecret.name (not $redis.url) -}}
{{- fail "externalRedis.passwordSecret belongs to externalRedis.url; the address of urlSecret has its own password" -}}
{{- end -}}
{{- if contains "@" $redis.url -}}
{{- fail "externalRedis.url holds a password or user: use externalRedis.passwordSecret or urlSecret" -}}
{{- end -}}
{{- $auto := .Values.gateway.autoscaling -}}
{{- if and $auto.enabled (gt (int $auto.minReplicas) (int $auto.maxReplicas)) -}}
{{- fail "gateway.autoscaling.minReplicas is more than maxReplicas" -}}
{{- end -}}
{{- if .Values.crds.enabled -}}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "inferenceservices.serving.octavo.dev" | default dict -}}
{{- $owner := get (dig "metadata" "annotations" dict $crd) "meta.helm.sh/release-name" -}}
{{- $home := get (dig "metadata" "annotations" dict $crd) "meta.helm.sh/release-namespace" -}}
{{- if and $owner (or (ne $owner .Release.Name) (ne $home .Release.Namespace)) -}}
{{- range (lookup "apps/v1" "Deployment" $home "" | default dict).items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if and (eq (get $labels "app.kubernetes.io/instance") $owner) (eq (get $labels "app.kubernetes.io/name") "octavo") -}}
{{- fail (printf "the CustomResourceDefinition belongs to release %s in %s: set crds.enabled=false" $owner $home) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.rbac.create -}}
{{- include "octavo.alone" . -}}
{{- end -}}
{{- end -}}
