{{- define "tart-provider.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Names of machines, Nodes and hosts begin with it, and have 63 characters at most with what follows. */}}
{{- define "tart-provider.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "tart-provider.name" .) .Release.Name -}}
{{- .Release.Name | trunc 34 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tart-provider.name" .) | trunc 34 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tart-provider.selector" -}}
app.kubernetes.io/name: {{ include "tart-provider.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tart-provider.labels" -}}
{{ include "tart-provider.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tart-provider.cluster" -}}
{{ include "tart-provider.fullname" . }}-capi
{{- end -}}

{{- define "tart-provider.scalewaySecret" -}}
{{ .Values.pool.scaleway.secretName | default (printf "%s-scaleway" (include "tart-provider.fullname" .)) }}
{{- end -}}

{{/* A role for the provider in a namespace. */}}
{{- define "tart-provider.binding" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "tart-provider.fullname" . }}
    namespace: {{ .Release.Namespace }}
{{- end -}}

{{/* The fleets that are enabled, as YAML: one source for MachineDeployments, zones and the claim-name prefix. */}}
{{- define "tart-provider.fleets" -}}
{{- include "tart-provider.check" . -}}
{{- $full := include "tart-provider.fullname" . -}}
{{- $values := .Values -}}
{{- $fleets := list -}}
{{- range $kind := list "macos" "runners" "builders" -}}
{{- $fleet := index $values (printf "%sFleet" $kind) -}}
{{- if $fleet.enabled -}}
{{- $name := $fleet.name | default (printf "%s-%s-fleet" $full $kind) -}}
{{- $prefix := $fleet.adoptPoolPrefix | default $values.macosFleet.adoptPoolPrefix -}}
{{- if hasPrefix $prefix $name -}}
{{- fail (printf "%sFleet: machines of the fleet %s would look like free hosts, whose names begin with %s: choose another %sFleet.name or adoptPoolPrefix" $kind $name $prefix $kind) -}}
{{- end -}}
{{- if and $values.macosFleet.orphanReclaim.activeReclaim (not (hasPrefix (printf "%s-" $full) $name)) -}}
{{- fail (printf "%sFleet.name is %s: with macosFleet.orphanReclaim.activeReclaim it has to begin with %s-, which says whose orphans are given back" $kind $name $full) -}}
{{- end -}}
{{- $replicas := $fleet.replicas | default 0 -}}
{{- if hasKey $fleet "hostCount" -}}{{- $replicas = $fleet.hostCount -}}{{- end -}}
{{- $spec := dict "fleetName" $name "adoptPoolPrefix" $prefix -}}
{{- range $key, $value := $fleet.machine -}}{{- $_ := set $spec $key $value -}}{{- end -}}
{{- if eq $kind "builders" -}}
{{- if not $fleet.ghRunnerVersion -}}
{{- fail "buildersFleet.ghRunnerVersion is needed, since machines have to name it: the release of provider.actionsRunner.path, such as 2.336.0" -}}
{{- end -}}
{{- $app := $fleet.ghAppSecretName | default (printf "%s-gh-app" $name) -}}
{{- $_ := set $spec "ghActionsRunner" (dict "ghOrg" $fleet.ghOrg "ghRunnerLabels" $fleet.ghRunnerLabels "ghRunnerVersion" $fleet.ghRunnerVersion "ghAppSecretName" $app) -}}
{{- end -}}
{{- $fleets = append $fleets (dict "kind" $kind "name" $name "replicas" $replicas "spec" $spec) -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "items" $fleets) -}}
{{- end -}}

{{/* The zones of all fleets; those of the macOS fleet if none is enabled yet. */}}
{{- define "tart-provider.zones" -}}
{{- $zones := list -}}
{{- range (include "tart-provider.fleets" . | fromYaml).items -}}{{- $zones = append $zones .spec.zone -}}{{- end -}}
{{- join "," ($zones | uniq | default (list .Values.macosFleet.machine.zone)) -}}
{{- end -}}
