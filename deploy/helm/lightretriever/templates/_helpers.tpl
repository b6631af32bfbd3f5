{{- define "lightretriever.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "lightretriever.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lightretriever.labels" -}}
{{ include "lightretriever.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "lightretriever.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* A number as JSON writes it: 1048576, not 1.048576e+06. */ -}}
{{- define "lightretriever.plain" -}}
{{ if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end -}}

{{- define "lightretriever.scheme" -}}
{{ .Values.scheme | default (ternary "https" "http" (hasKey .Values.settings "tls_certificate_file")) }}
{{- end -}}

{{- define "lightretriever.checkBundle" -}}
{{- if and .Values.bundle.claim .Values.bundle.image -}}
{{- fail "bundle.claim and bundle.image are both given: leave one of them empty." -}}
{{- else if not (or .Values.bundle.claim .Values.bundle.image) -}}
{{- fail "There is no bundle: let bundle.claim name a PersistentVolumeClaim, or bundle.image an image, that holds one." -}}
{{- end -}}
{{- end -}}
