// The dashboards and rules in the shape that mixin tools take (jsonnet, mixtool, Tanka).
{
  grafanaDashboards+:: {
    'innoscope-fleet.json': import 'grafana/innoscope-fleet.json',
    'innoscope-server.json': import 'grafana/innoscope-server.json',
    'innoscope-dirty-page.json': import 'grafana/innoscope-dirty-page.json',
    'innoscope-contention.json': import 'grafana/innoscope-contention.json',
    'innoscope-agent.json': import 'grafana/innoscope-agent.json',
  },
  prometheusRules+:: std.parseYaml(importstr 'alerts/recording.yaml'),
  prometheusAlerts+:: std.parseYaml(importstr 'alerts/alerts.yaml'),
}
