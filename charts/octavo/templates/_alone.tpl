{{/* Refuses a second operator over the same namespaces: both would write the same objects.
Seen are bindings of other releases; none where manifests are rendered without a cluster, and those
of the whole cluster only by whoever may make such himself. */}}
{{- define "octavo.alone" -}}
{{- $served := (include "octavo.namespaces" . | fromYaml).items -}}
{{- $rbac := "rbac.authorization.k8s.io/v1" -}}
{{- $bindings := list -}}
{{- if or .Values.rbac.clusterScoped .Values.crds.enabled -}}
{{- $bindings = (lookup $rbac "ClusterRoleBinding" "" "" | default dict).items | default list -}}
{{- end -}}
{{- range $served | default (list "") -}}
{{- $bindings = concat $bindings ((lookup $rbac "RoleBinding" . "" | default dict).items | default list) -}}
{{- end -}}
{{- range $bindings -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $account := first (.subjects | default list) | default dict -}}
{{- $release := get $labels "app.kubernetes.io/instance" -}}
{{- $is := and (eq (get $labels "app.kubernetes.io/name") "octavo") (eq (get $labels "app.kubernetes.io/component") "operator") -}}
{{- /* The role for its Lease, at home, is called as the account is. */ -}}
{{- if and $is (ne .roleRef.name $account.name) (or (ne $release $.Release.Name) (ne $account.namespace $.Release.Namespace)) -}}
{{- /* Of a binding of 0.1.0 nobody knows for which namespaces it is: only all meet them surely. */ -}}
{{- $theirs := .metadata.namespace | default (get (.metadata.annotations | default dict) "serving.octavo.dev/namespaces") -}}
{{- $both := list -}}
{{- range splitList "," $theirs -}}
{{- if or (not $served) (eq . "*") (has . $served) -}}{{- $both = append $both . -}}{{- end -}}
{{- end -}}
{{- if $both -}}
{{- fail (printf "release %s in %s serves %s already, and two operators would write the same objects: set rbac.clusterScoped=false and give each release other rbac.namespaces" $release $account.namespace ($theirs | default "*" | replace "*" "all namespaces")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
