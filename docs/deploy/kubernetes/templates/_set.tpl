{{- /* Sets the values in a StatefulSet of base/.  Takes object, values (of its kind) and all of them. */ -}}
{{- define "dtd.set" -}}
{{- $pod := .object.spec.template.spec -}}
{{- range concat (default list $pod.initContainers) $pod.containers -}}
{{- $_ := set . "image" $.all.image -}}
{{- end -}}
{{- $_ := set (index $pod.containers 0) "resources" .values.resources -}}
{{- $claim := (index .object.spec.volumeClaimTemplates 0).spec -}}
{{- $_ := set $claim.resources.requests "storage" .values.storage.size -}}
{{- with .values.storage.class -}}
{{- $_ := set $claim "storageClassName" . -}}
{{- end -}}
{{- range .all.imagePullSecrets -}}
{{- $_ := set $pod "imagePullSecrets" (append (default list $pod.imagePullSecrets) (dict "name" .)) -}}
{{- end -}}
{{- end -}}

{{- define "dtd.setWorkers" -}}
{{- $pod := .object.spec.template.spec -}}
{{- $worker := index $pod.containers 0 -}}
{{- $_ := set .object.spec "replicas" .values.count -}}
{{- $_ := set $pod "terminationGracePeriodSeconds" (add .values.drainTimeoutSeconds 10) -}}
{{- range $worker.env -}}
{{- if eq .name "DTD_DRAIN_TIMEOUT_S" -}}
{{- $_ := set . "value" (toString $.values.drainTimeoutSeconds) -}}
{{- end -}}
{{- end -}}
{{- range (index $pod.initContainers 0).env -}}
{{- if eq .name "TOKEN" -}}
{{- $_ := set .valueFrom.secretKeyRef "name" $.all.tokenSecret -}}
{{- end -}}
{{- end -}}
{{- range $pod.volumes -}}
{{- if eq .name "shm" -}}
{{- $_ := set .emptyDir "sizeLimit" $.values.sharedMemory -}}
{{- end -}}
{{- end -}}
{{- with .values.gpu -}}
{{- $limits := merge (dict . 1) (default dict $worker.resources.limits) -}}
{{- $_ := set $worker "resources" (merge (dict "limits" $limits) $worker.resources) -}}
{{- $_ := set $worker "env" (append $worker.env (dict "name" "DTD_DEVICE" "value" "cuda:0")) -}}
{{- end -}}
{{- $_ := mergeOverwrite $pod .values.pod -}}
{{- end -}}
