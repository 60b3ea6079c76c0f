{{/* What all pods have in common. Each takes (root, component). */}}

{{/* Pod level: scheduling, credentials, security. */}}
{{- define "octavo.podSettings" -}}
{{- $root := index . 0 -}}{{- $values := index $root.Values (index . 1) -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  {{- $restricted := dict
    "runAsNonRoot" true
    "runAsUser" 65532
    "runAsGroup" 65532
    "fsGroup" 65532
    "seccompProfile" (dict "type" "RuntimeDefault") }}
  {{- toYaml (mergeOverwrite $restricted (deepCopy $values.podSecurityContext)) | nindent 2 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Container level: image, security, resources. */}}
{{- define "octavo.containerSettings" -}}
{{- $root := index . 0 -}}{{- $values := index $root.Values (index . 1) -}}
image: {{ include "octavo.image" (list $root $values.image "") | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
securityContext:
  {{- $restricted := dict
    "allowPrivilegeEscalation" false
    "readOnlyRootFilesystem" true
    "capabilities" (dict "drop" (list "ALL")) }}
  {{- toYaml (mergeOverwrite $restricted (deepCopy $values.securityContext)) | nindent 2 }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
{{- end -}}

{{/* A short-lived token of the pod's own ServiceAccount, where clients look for it. */}}
{{- define "octavo.tokenVolume" -}}
- name: api-token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3600
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
      - downwardAPI:
          items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
{{- end -}}

{{- define "octavo.tokenMount" -}}
- name: api-token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}
