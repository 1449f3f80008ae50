{{/* The containers and volumes of both forms. The context is a dict: root (the chart's context) and form. */}}

{{- define "innoscope.labels" -}}
app.kubernetes.io/name: innoscope
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "innoscope.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "innoscope.sensor" -}}
- name: sensor
  image: {{ include "innoscope.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [/usr/bin/innoscope-sensor]
  {{- with .root.Values.sensor.args }}
  args: {{ toJson . }}
  {{- end }}
  env:
    - {name: XDG_CACHE_HOME, value: /var/cache/innoscope-sensor}
    {{- if .root.Values.sensor.sysAdmin }}
    - {name: INNOSCOPE_SYS_ADMIN, value: "1"}
    {{- end }}
  securityContext:
    # Kubernetes gives capabilities only to containers that start as root. innoscope-sensor changes to its own user, and drops
    # SETUID, SETGID and SETPCAP.
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    privileged: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      add:
        - BPF
        - PERFMON
        - SYS_PTRACE
        - CHECKPOINT_RESTORE
        - DAC_READ_SEARCH
        - SETUID
        - SETGID
        - SETPCAP
        {{- if .root.Values.sensor.sysAdmin }}
        - SYS_ADMIN
        {{- end }}
    seccompProfile: {{ toJson .root.Values.sensor.seccompProfile }}
  resources: {{ toJson .root.Values.sensor.resources }}
  volumeMounts:
    - {name: innoscope-run, mountPath: /run/innoscope}
    - {name: innoscope-cache, mountPath: /var/cache/innoscope-sensor}
    - {name: innoscope-sensor-tmp, mountPath: /tmp}
    {{- if include "innoscope.servers" . }}
    - {name: innoscope-config, mountPath: /etc/innoscope/servers.toml, subPath: servers.toml, readOnly: true}
    {{- end }}
    {{- if eq .form "daemonset" }}
    - {name: container-logs, mountPath: /var/log/containers, readOnly: true}
    {{- end }}
{{- end }}

{{- define "innoscope.agent" -}}
- name: agent
  image: {{ include "innoscope.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args: {{ concat (list "agent" "--config.file" "/etc/innoscope/agent.toml") .root.Values.agent.args | toJson }}
  env:
    # Overwrite memory when it is freed, because it may contain statements.
    - {name: PYTHONMALLOC, value: malloc}
    - {name: GLIBC_TUNABLES, value: "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0"}
  ports:
    - {name: metrics, containerPort: {{ .root.Values.agent.port }}}
  livenessProbe:
    tcpSocket: {port: metrics}
    periodSeconds: 20
    timeoutSeconds: 5
  securityContext:
    runAsUser: 9977
    runAsGroup: 9977
    runAsNonRoot: true
    privileged: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {{ toJson .root.Values.agent.seccompProfile }}
  resources: {{ toJson .root.Values.agent.resources }}
  volumeMounts:
    - {name: innoscope-run, mountPath: /run/innoscope, readOnly: true}
    - {name: innoscope-state, mountPath: /var/lib/innoscope-agent}
    - {name: innoscope-agent-tmp, mountPath: /tmp}
    - {name: innoscope-config, mountPath: /etc/innoscope/agent.toml, subPath: agent.toml, readOnly: true}
    {{- if .root.Values.secretName }}
    - {name: innoscope-secret, mountPath: /etc/innoscope/secret, readOnly: true}
    {{- end }}
    {{- if eq .form "sidecar" }}
    - {name: {{ .root.Values.sidecar.socketVolume }}, mountPath: {{ dir .root.Values.sidecar.socket }}}
    {{- end }}
{{- end }}

{{- define "innoscope.volumes" -}}
- {name: innoscope-run, emptyDir: {medium: Memory, sizeLimit: 16Mi}}
- {name: innoscope-cache, emptyDir: {sizeLimit: 512Mi}}
- {name: innoscope-state, emptyDir: {sizeLimit: {{ .root.Values.agent.stateSize }}}}
- {name: innoscope-sensor-tmp, emptyDir: {sizeLimit: 256Mi}}
- {name: innoscope-agent-tmp, emptyDir: {sizeLimit: 256Mi}}
- {name: innoscope-config, configMap: {name: {{ .root.Release.Name }}-{{ .form }}}}
{{- if .root.Values.secretName }}
# 0440 and the pod's fsGroup: readable by the agent, which runs as this group.
- {name: innoscope-secret, secret: {secretName: {{ .root.Values.secretName }}, defaultMode: 0440}}
{{- end }}
{{- if eq .form "daemonset" }}
# Only the names of the links are read: they name the pod and the container of a server.
- {name: container-logs, hostPath: {path: /var/log/containers, type: Directory}}
{{- end }}
{{- end }}

{{- define "innoscope.config" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .root.Release.Name }}-{{ .form }}
  labels: {{- include "innoscope.labels" .root | nindent 4 }}
data:
  agent.toml: |
    [web]
    listen_address = ":{{ .root.Values.agent.port }}"

    {{- if eq .form "sidecar" }}

    [[server]]
    name = "mysql"
    socket = "{{ .root.Values.sidecar.socket }}"
    {{- else }}

    # The agent does not log in to servers in containers of other pods.
    [sql]
    enabled = false
    {{- end }}
    {{- with .root.Values.agentConfig }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- with include "innoscope.servers" . }}
  servers.toml: |
    {{- . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* To a sidecar, which shares the server's process ids, the server is not in a container. */}}
{{- define "innoscope.servers" -}}
{{- if .root.Values.serversConfig }}{{ .root.Values.serversConfig }}
{{- else if eq .form "sidecar" }}users = [27, 999, 1001]
{{- end }}
{{- end }}
