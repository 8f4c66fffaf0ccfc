{{/* What texts among the values may be like, and the words for one that is not. The schema could only show the pattern. */}}
{{- define "tart-provider.patterns" -}}
- values: [fullnameOverride]
  pattern: '^([a-z]([a-z0-9-]{0,32}[a-z0-9])?)?$'
  words: empty, or at most 34 small letters, digits and hyphens, since names of machines begin with it
- values: [macosFleet.name, runnersFleet.name, buildersFleet.name]
  pattern: '^([a-z]([a-z0-9-]{0,49}[a-z0-9])?)?$'
  words: empty, or at most 51 small letters, digits and hyphens, since names of machines are longer by twelve characters
- values: [macosFleet.adoptPoolPrefix]
  pattern: '^[a-z0-9][a-z0-9-]*-$'
  words: small letters, digits and hyphens, and a hyphen at the end. It is the pool of all fleets that name no other
- values: [runnersFleet.adoptPoolPrefix, buildersFleet.adoptPoolPrefix]
  pattern: '^([a-z0-9][a-z0-9-]*-)?$'
  words: empty, or small letters, digits and hyphens, and a hyphen at the end
- values: [macosFleet.machine.zone, runnersFleet.machine.zone, buildersFleet.machine.zone]
  pattern: '^[A-Za-z0-9_-][A-Za-z0-9._-]*$'
  words: the zone of the pool, such as fr-par-1; local for a list of Macs
- values: [macosFleet.machine.os, runnersFleet.machine.os, buildersFleet.machine.os]
  pattern: '^[^0-9]+$'
  words: the release of macOS by its name and without a version, such as Tahoe
- values:
    - macosFleet.orphanReclaim.interval
    - metrics.podMonitor.interval
    - metrics.serviceMonitor.interval
    - pool.scaleway.externalSecret.refreshInterval
    - buildersFleet.externalSecret.refreshInterval
    - capi.remoteKubeconfig.externalSecrets.refreshInterval
  pattern: '^([0-9]+(ms|s|m|h))+$'
  words: a duration, such as 30s or 15m
- values:
    - pool.scaleway.secretName
    - pool.macList.secretName
    - buildersFleet.ghAppSecretName
    - provider.tailscale.authKeySecretName
  pattern: '^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$'
  words: empty, or the name of a Secret
- values: [buildersFleet.ghRunnerVersion]
  pattern: '^([0-9]+\.[0-9]+\.[0-9]+)?$'
  words: a release of actions/runner, such as 2.336.0
- values: [provider.apiServerURL]
  pattern: '^(https://.+)?$'
  words: empty, or a URL that begins with https://
- values: [provider.tart.binary]
  pattern: '^/'
  words: the path of tart on the hosts, which begins with /
- values:
    - provider.tart.archivePath
    - provider.nodeExporter.path
    - provider.actionsRunner.path
    - provider.tailscale.path
    - provider.tailscale.daemonPath
  pattern: '^(/.+)?$'
  words: empty, or a path in the provider's Pod, which begins with /
- values: [provider.nodeExporter.listen]
  pattern: '.:[0-9]+$'
  words: an address and a port, such as 127.0.0.1:9100
- values: [provider.tailscale.tags]
  pattern: '^tag:[A-Za-z][A-Za-z0-9-]*$'
  words: a tag of the tailnet, such as tag:mac
- values: [provider.tartKubelet.flags, provider.extraArgs]
  pattern: '^--[a-z]'
  words: a flag that begins with --, such as --allowed-host-path=/opt/cache
- values: [provider.allowVMDestinations]
  pattern: '^(any|tcp|udp) \S+( \S+)?$'
  words: PROTOCOL NETWORK [PORTS], such as tcp 10.1.2.3 443
{{- end -}}

{{/* Ends with words where a value is not as it should be. */}}
{{- define "tart-provider.check" -}}
{{- $all := .Values -}}
{{- range $rule := include "tart-provider.patterns" . | fromYamlArray -}}
{{- range $path := $rule.values -}}
{{- $value := $all -}}
{{- range $step := splitList "." $path -}}
{{- if kindIs "map" $value }}{{ $value = get $value $step }}{{ else }}{{ $value = "" }}{{ end -}}
{{- end -}}
{{- range $text := kindIs "slice" $value | ternary $value (list $value) -}}
{{- if not (regexMatch $rule.pattern (toString $text)) -}}
{{- fail (printf "%s is `%v`, and not %s" $path $text $rule.words) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.provider.tailscale -}}
{{- if and .path (not (and .daemonPath .authKeySecretName)) -}}
{{- fail "provider.tailscale.path needs daemonPath and authKeySecretName beside it" -}}
{{- end -}}
{{- if and .daemonPath (not .path) -}}
{{- fail "provider.tailscale.daemonPath needs path beside it" -}}
{{- end -}}
{{- end -}}
{{- if not .Values.capi.enabled -}}
{{- range $fleet := list "macosFleet" "runnersFleet" "buildersFleet" -}}
{{- if (index $all $fleet).enabled -}}
{{- fail (printf "%s.enabled needs capi.enabled: a fleet belongs to the Cluster that it makes" $fleet) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
