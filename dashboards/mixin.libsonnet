// The dashboards, alerts and recording rules in the format that mixin tools expect (jsonnet, mixtool, Tanka).
// `make dashboards` generates mixin-rules.json from alerts/alerts.yaml and alerts/recording.yaml.
local rules = import 'mixin-rules.json';
{
  grafanaDashboards+:: {
    'innoscope-fleet.json': import 'grafana/innoscope-fleet.json',
    'innoscope-server.json': import 'grafana/innoscope-server.json',
    'innoscope-dirty-page.json': import 'grafana/innoscope-dirty-page.json',
    'innoscope-contention.json': import 'grafana/innoscope-contention.json',
    'innoscope-replication.json': import 'grafana/innoscope-replication.json',
    'innoscope-agent.json': import 'grafana/innoscope-agent.json',
  },
  prometheusAlerts+:: rules.prometheusAlerts,
  prometheusRules+:: rules.prometheusRules,
}
